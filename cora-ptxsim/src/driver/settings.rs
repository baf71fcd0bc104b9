//! What the device is, by `PTXSIM_DEVICE`.

/// The device and its driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Settings {
    /// Bytes of the device's memory.
    pub memory: u64,
    /// Compute capability, ten times the major number and the minor.
    pub arch: u32,
    /// How many devices there are.
    pub devices: i32,
    /// What CUDA the driver is for: 12000 is 12.0.
    pub version: i32,
    /// What `cuInit` answers.
    pub init: u32,
    /// Whether the work of kernels is counted.
    pub count: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { memory: 16 << 30, arch: 90, devices: 1, version: 12_080, init: 0, count: false }
    }
}

impl Settings {
    /// Reads `memory=1048576,arch=70`.
    ///
    /// # Errors
    /// What cannot be read.
    pub(super) fn parse(text: &str) -> Result<Settings, String> {
        let mut s = Settings::default();
        for part in text.split(',').filter(|p| !p.is_empty()) {
            let wrong =
                || format!("PTXSIM_DEVICE: `{part}` is none of memory=, arch=, devices=, version=, init=, count=");
            let (name, value) = part.split_once('=').ok_or_else(wrong)?;
            let value: u64 = value.parse().map_err(|_| wrong())?;
            let small = || u32::try_from(value).ok().filter(|v| *v <= i32::MAX as u32).ok_or_else(wrong);
            match name {
                "memory" => s.memory = value,
                "arch" => s.arch = small()?,
                "devices" => s.devices = small()? as i32,
                "version" => s.version = small()? as i32,
                "init" => s.init = small()?,
                "count" => s.count = small()? != 0,
                _ => return Err(wrong()),
            }
        }
        Ok(s)
    }

    /// The greatest dynamic shared memory that a kernel can be allowed, in bytes.
    pub(super) fn most_shared(&self) -> u32 {
        match self.arch {
            ..70 => 48 << 10,
            70 | 72 => 96 << 10,
            75 => 64 << 10,
            80 | 87 => 163 << 10,
            86 | 89 | 120.. => 99 << 10,
            _ => 227 << 10,
        }
    }

    /// Whether code for `target`, such as `sm_80` or `sm_90a`, runs here.
    pub(super) fn runs(&self, target: &str) -> bool {
        let name = target.trim_start_matches("sm_");
        let digits = name.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let Ok(number) = digits.parse::<u32>() else { return false };
        match &name[digits.len()..] {
            "" => number <= self.arch,
            "f" => number <= self.arch && number / 10 == self.arch / 10,
            _ => number == self.arch,
        }
    }

    /// The newest version of PTX that the driver reads.
    pub(super) fn ptx_version(&self) -> (u32, u32) {
        let (major, minor) = ((self.version / 1000).max(4) as u32, (self.version % 1000 / 10) as u32);
        match (major, minor) {
            (12, 6..) => (8, minor - 1),
            _ => (major - 4, minor),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Settings;

    #[test]
    fn settings_are_read() {
        let s = Settings::parse("memory=1024,arch=70,version=11030").expect("known names");
        assert_eq!((s.memory, s.arch, s.devices, s.init), (1024, 70, 1, 0));
        assert_eq!((s.ptx_version(), s.most_shared()), ((7, 3), 98304));
        assert_eq!(Settings::parse(""), Ok(Settings::default()));
        for wrong in ["arch", "arch=x", "speed=3", "arch=5000000000"] {
            assert!(Settings::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn targets_run_where_the_driver_runs_them() {
        let on = |arch, target| Settings { arch, ..Settings::default() }.runs(target);
        assert!(on(90, "sm_70") && on(90, "sm_90") && on(90, "sm_90a") && on(103, "sm_100f"));
        assert!(!on(80, "sm_90") && !on(100, "sm_90a") && !on(120, "sm_100f") && !on(90, "nonsense"));
    }
}
