# Run inside the new system's folder: what Debian's own cloud images set, and no waiting for what a test guest has not.
echo 'LABEL=berth-root / ext4 rw,relatime 0 1' >/etc/fstab
echo berth-guest >/etc/hostname
: >/etc/machine-id
rm -f /etc/ssh/ssh_host_*_key*
# The modules that users of a test guest ask for: under emulation each of the others costs a second.
cat >/etc/cloud/cloud.cfg.d/90_berth.cfg <<'END'
datasource_list: [NoCloud, None]
system_info:
  network:
    renderers: [networkd]
ssh_genkeytypes: [ed25519]
no_ssh_fingerprints: true
ssh:
  emit_keys_to_console: false
cloud_init_modules: [bootcmd, write-files, growpart, resizefs, set_hostname, update_hostname, users-groups, ssh]
cloud_config_modules: [set-passwords, runcmd]
cloud_final_modules: [write-files-deferred, scripts-vendor, scripts-per-once, scripts-per-boot, scripts-user, final-message]
END
systemctl enable systemd-networkd.service ssh.service
systemctl set-default multi-user.target
systemctl disable apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer fstrim.timer e2scrub_all.timer e2scrub_reap.service
systemctl mask systemd-networkd-wait-online.service systemd-binfmt.service systemd-update-utmp.service getty@tty1.service
rm -rf /var/cache/apt/* /var/lib/apt/lists/*
