package harden

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
)

// The guest drops what the runtime gives it for overlays.
func TestLayerCapabilities(t *testing.T) {
	number := map[string]uint{"CAP_CHOWN": 0, "CAP_DAC_OVERRIDE": 1, "CAP_FOWNER": 3, "CAP_FSETID": 4, "CAP_SYS_ADMIN": 21}
	var set uint64
	for _, name := range LayerCapabilities() {
		set |= 1 << number[name]
	}
	if set != wire.LayerCapabilities || len(LayerCapabilities()) != len(number) {
		t.Errorf("the runtime gives %#x, and the guest drops %#x", set, wire.LayerCapabilities)
	}
}

func TestSeccompFor(t *testing.T) {
	for _, pair := range [][2]string{{"amd64", "x86_64"}, {"arm64", "aarch64"}} {
		a, err := SeccompFor(pair[0])
		must(t, err)
		b, err := SeccompFor(pair[1])
		must(t, err)
		if a.SHA256 != b.SHA256 || len(a.SHA256) != 64 || !json.Valid(a.JSON) {
			t.Errorf("%v: digests %q and %q", pair, a.SHA256, b.SHA256)
		}
	}
	plain, err := SeccompFor("amd64")
	must(t, err)
	more, err := plain.WithSocketDiagnosis()
	must(t, err)
	again, err := SeccompFor("amd64")
	if err != nil || again.SHA256 != plain.SHA256 || len(again.OCI.Syscalls) != len(plain.OCI.Syscalls) {
		t.Errorf("the profile was changed: %v", err)
	}
	if more.SHA256 == plain.SHA256 || len(more.OCI.Syscalls) != len(plain.OCI.Syscalls)+1 || !json.Valid(more.JSON) {
		t.Errorf("%d rules with socket diagnosis, %d without", len(more.OCI.Syscalls), len(plain.OCI.Syscalls))
	}
	if _, err := SeccompFor("riscv64"); err == nil {
		t.Error("riscv64 has a profile")
	}
}

func TestTmpfsMounts(t *testing.T) {
	r := limits.DefaultResources()
	got := map[string]string{}
	home := Tmpfs{Path: "/run/identity/1", Bytes: 64 << 20, Mode: 0o750, GID: 50001, Exec: true}
	for _, m := range TmpfsMounts(r, 1000, 1001, Tmpfs{Path: "/further", Bytes: 256 << 20}, home) {
		got[m.Path] = strings.Join(m.Options(), ",")
	}
	want := map[string]string{
		"/tmp":     "rw,nosuid,nodev,exec,size=536870912,nr_inodes=131072,mode=1777,uid=0,gid=0",
		"/further": "rw,nosuid,nodev,exec,size=268435456,nr_inodes=65536,mode=0700,uid=1000,gid=1001",
		"/run":     "rw,nosuid,nodev,noexec,size=16777216,nr_inodes=4096,mode=0755,uid=0,gid=0",
		"/dev/shm": "rw,nosuid,nodev,noexec,size=67108864,nr_inodes=16384,mode=1777,uid=0,gid=0",
		home.Path:  "rw,nosuid,nodev,exec,size=67108864,nr_inodes=16384,mode=0750,uid=0,gid=50001",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("tmpfs mounts (-want +got):\n%s", diff)
	}
}

// TestTmpfsWithinMemory checks that the file systems which commands can fill
// are smaller than the memory limit.
func TestTmpfsWithinMemory(t *testing.T) {
	r := limits.DefaultResources()
	for _, tt := range []struct {
		memory            int64
		tmp, further, shm int64
	}{
		{2 << 30, 512, 256, 64},
		{1 << 30, 472, 236, 59},
		{256 << 20, 118, 59, 14},
		{64 << 20, 29, 14, 3},
	} {
		r.MemoryBytes = tt.memory
		got := map[string]int64{}
		for _, m := range TmpfsMounts(r, 1, 1, Tmpfs{Path: "/further", Bytes: 256 << 20}) {
			got[m.Path] = m.Bytes >> 20
		}
		want := map[string]int64{"/tmp": tt.tmp, "/further": tt.further, "/dev/shm": tt.shm, "/run": 16}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%d bytes of memory (-want +got, MiB):\n%s", tt.memory, diff)
		}
	}
}

func TestRlimits(t *testing.T) {
	r := limits.DefaultResources()
	want := []Rlimit{
		{Name: "core", Soft: 1, Hard: 1},
		{Name: "fsize", Soft: 64 << 30, Hard: 64 << 30},
		{Name: "memlock", Soft: 65536, Hard: 65536},
		{Name: "msgqueue", Soft: 65536, Hard: 65536},
		{Name: "nofile", Soft: 4096, Hard: 4096},
		{Name: "stack", Soft: 8 << 20, Hard: 64 << 20},
	}
	if diff := cmp.Diff(want, Rlimits(r, false)); diff != "" {
		t.Errorf("rlimits (-want +got):\n%s", diff)
	}
}

func TestPaths(t *testing.T) {
	for name, list := range map[string][]string{"masked": MaskedPaths(), "read-only": ReadonlyPaths()} {
		if !slices.IsSorted(list) {
			t.Errorf("%s paths are not sorted: %v", name, list)
		}
		for _, p := range list {
			if !strings.HasPrefix(p, "/proc/") && !strings.HasPrefix(p, "/sys/") {
				t.Errorf("%s path %q is outside /proc and /sys", name, p)
			}
		}
	}
	for _, p := range []string{"/proc/kcore", "/proc/keys", "/proc/timer_list", "/sys/firmware"} {
		if !slices.Contains(MaskedPaths(), p) {
			t.Errorf("%s is not masked", p)
		}
	}
}
