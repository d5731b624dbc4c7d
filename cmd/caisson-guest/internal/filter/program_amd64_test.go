package filter

import (
	"testing"

	"golang.org/x/sys/unix"
)

// TestSetIDOfOldCalls checks which argument is the mode of this processor's
// calls.
func TestSetIDOfOldCalls(t *testing.T) {
	const path, device, mode = 0o4755, 0o4755, 0o4755
	for _, tt := range []struct {
		name string
		call []byte
		want uint32
	}{
		{"chmod", data(auditArch, unix.SYS_CHMOD, 0, mode), eperm},
		{"chmod, path only", data(auditArch, unix.SYS_CHMOD, path, 0o755), allow},
		{"open", data(auditArch, unix.SYS_OPEN, 0, unix.O_CREAT, mode), uint32(NotifySetID)},
		{"open, path only", data(auditArch, unix.SYS_OPEN, path, unix.O_CREAT, 0o755), allow},
		{"creat", data(auditArch, unix.SYS_CREAT, 0, mode), uint32(NotifySetID)},
		{"creat, path only", data(auditArch, unix.SYS_CREAT, path, 0o755), allow},
		{"mknod", data(auditArch, unix.SYS_MKNOD, 0, mode, 0), uint32(NotifySetID)},
		{"mknod, the device", data(auditArch, unix.SYS_MKNOD, path, 0o755, device), allow},
	} {
		if got := run(t, tt.call); got != tt.want {
			t.Errorf("%s: %#x, want %#x", tt.name, got, tt.want)
		}
	}
}
