package guest

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
)

// hardened returns a good container's hello.
func hardened() wire.Hello {
	ids := func(n uint32) [4]uint32 { return [4]uint32{n, n, n, n} }
	return wire.Hello{
		Protocol: wire.Version, PID: 1,
		Guest:      wire.Identity{Permitted: 0x1e0, Effective: 0x1e0, Bounding: 0x1e0, NoNewPrivs: true},
		Command:    wire.Identity{UID: ids(10001), GID: ids(10001), Groups: []uint32{30000}, NoNewPrivs: true, Seccomp: 2, Filters: 2},
		Namespaces: map[string]uint64{"pid": 7},
		Root:       wire.Mount{Path: "/", Options: []string{"ro"}},
		Workspace:  wire.Mount{Path: "/workspace", Type: "ext4"},
		Interfaces: []string{"lo"}, KillMethod: "gid",
		Probe: &wire.Probe{Results: map[string]string{"bpf": "EPERM"}, Descriptors: []int{0, 1, 2}},
	}
}

func TestVerifyHardening(t *testing.T) {
	want := Expectation{Filters: 2, HostNamespaces: map[string]uint64{"pid": 1}, Probe: true}
	if err := VerifyHardening(hardened(), want); err != nil {
		t.Fatalf("a good container: %v", err)
	}
	for says, spoil := range map[string]func(*wire.Hello){
		"real uid":             func(h *wire.Hello) { h.Command.UID[0] = 0 },
		"saved gid":            func(h *wire.Hello) { h.Command.GID[2] = 5 },
		"the groups":           func(h *wire.Hello) { h.Command.Groups = []uint32{30000, 4} },
		"in group 0":           func(h *wire.Hello) { h.Command.Groups = []uint32{0} },
		"CAP_SYS_ADMIN":        func(h *wire.Hello) { h.Command.Bounding = 1 << 21 },
		"command may gain":     func(h *wire.Hello) { h.Command.NoNewPrivs = false },
		"without a seccomp":    func(h *wire.Hello) { h.Command.Seccomp = 0 },
		"1 seccomp filters":    func(h *wire.Hello) { h.Command.Filters = 1 },
		"PID 5":                func(h *wire.Hello) { h.PID = 5 },
		"traced":               func(h *wire.Hello) { h.Dumpable = true },
		"guest may gain":       func(h *wire.Hello) { h.Guest.NoNewPrivs = false },
		"CAP_NET_RAW":          func(h *wire.Hello) { h.Guest.Bounding |= 1 << 13 },
		"the same user":        func(h *wire.Hello) { h.Guest.UID[0] = 10001 },
		"killed by":            func(h *wire.Hello) { h.KillMethod = "subreaper" },
		"core files":           func(h *wire.Hello) { h.Limits.CoreBytes = -1 },
		"root file system":     func(h *wire.Hello) { h.Root.Options = []string{"rw"} },
		"mount of its own":     func(h *wire.Hello) { h.Workspace.Type = "" },
		"inside the workspace": func(h *wire.Hello) { h.Submounts = []wire.Mount{{Path: "/workspace/x"}} },
		"engine's socket":      func(h *wire.Hello) { h.Mounts = []string{"/run/docker.sock"} },
		"network interfaces":   func(h *wire.Hello) { h.Interfaces = []string{"lo", "eth0"} },
		"namespace is the":     func(h *wire.Hello) { h.Namespaces["pid"] = 1 },
		"unknown":              func(h *wire.Hello) { h.Namespaces = nil },
		"attempt at bpf":       func(h *wire.Hello) { h.Probe.Results["bpf"] = "ok" },
		"attempt at setns":     func(h *wire.Hello) { h.Probe.Results["setns"] = "EBADF" },
		"tried nothing":        func(h *wire.Hello) { h.Probe.Results = nil },
		"descriptors":          func(h *wire.Hello) { h.Probe.Descriptors = []int{0, 1, 2, 7} },
		"no command probed":    func(h *wire.Hello) { h.Probe = nil },
	} {
		h := hardened()
		spoil(&h)
		err := VerifyHardening(h, want)
		if !errors.Is(err, sandbox.ErrUnavailable) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: error is %v", says, err)
		}
	}
}

// TestVerifyRoot checks that root inside has only its capabilities, and is
// refused unless asked for.
func TestVerifyRoot(t *testing.T) {
	root := func() wire.Hello {
		h := hardened()
		h.Command.UID, h.Command.GID, h.Command.Groups = [4]uint32{}, [4]uint32{}, nil
		h.Command.Permitted, h.Command.Effective, h.Command.Bounding = wire.RootCapabilities, wire.RootCapabilities, wire.RootCapabilities
		h.Guest.Bounding |= wire.RootCapabilities
		h.KillMethod = "subreaper"
		h.UIDMap, h.GIDMap = []wire.IDRange{{Outside: 300_000, Count: 65_536}}, []wire.IDRange{{Outside: 400_000, Count: 65_536}}
		return h
	}
	want := Expectation{Filters: 2, Probe: true, Root: true, HostNamespaces: map[string]uint64{"pid": 1}}
	if err := VerifyHardening(root(), want); err != nil {
		t.Fatalf("a good container: %v", err)
	}
	for says, spoil := range map[string]func(*wire.Hello){
		"effective uid":    func(h *wire.Hello) { h.Command.UID[1] = 10001 },
		"CAP_SYS_PTRACE":   func(h *wire.Hello) { h.Command.Bounding |= 1 << 19 },
		"CAP_SYS_ADMIN":    func(h *wire.Hello) { h.Guest.Permitted |= 1 << 21 },
		"the groups":       func(h *wire.Hello) { h.Command.Groups = []uint32{1, 2} },
		"traced":           func(h *wire.Hello) { h.Dumpable = true },
		"command may gain": func(h *wire.Hello) { h.Command.NoNewPrivs = false },
		`maps the uids "0 0 4294967295"`: func(h *wire.Hello) {
			h.UIDMap = []wire.IDRange{{Count: 1<<32 - 1}}
		},
		`maps the gids "0 400000 1000, 1000 0 1"`: func(h *wire.Hello) {
			h.GIDMap = []wire.IDRange{{Outside: 400_000, Count: 1000}, {Inside: 1000, Count: 1}}
		},
		`maps the uids ""`: func(h *wire.Hello) { h.UIDMap = nil },
	} {
		h := root()
		spoil(&h)
		if err := VerifyHardening(h, want); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: error is %v", says, err)
		}
	}
	if err := VerifyHardening(root(), Expectation{Filters: 2, Probe: true}); err == nil {
		t.Error("root is accepted where it was not requested")
	}
	// The sandbox's own kernel has its own ids.
	own := root()
	own.UIDMap, own.GIDMap, want.HostNamespaces = []wire.IDRange{{Count: 1<<32 - 1}}, nil, nil
	if err := VerifyHardening(own, want); err != nil {
		t.Errorf("a kernel of its own: %v", err)
	}
}

// TestVerifyIDMaps checks that a container has the user namespace that was
// asked for, not a larger one.
func TestVerifyIDMaps(t *testing.T) {
	one := func(outside, count uint32) []wire.IDRange { return []wire.IDRange{{Outside: outside, Count: count}} }
	want := Expectation{Filters: 2, Probe: true, UIDMap: one(300_000, 65_536), GIDMap: one(400_000, 65_536)}
	for _, tt := range []struct {
		uids, gids []wire.IDRange
		text       string // empty for a good container
	}{
		{one(300_000, 65_536), one(400_000, 65_536), ""},
		{nil, one(400_000, 65_536), "uids"},
		{one(0, 1<<32-1), one(400_000, 65_536), "uids"},
		{one(300_000, 65_536), one(300_000, 65_536), "gids"},
		{one(300_000, 1000), one(400_000, 65_536), "uids"},
		{one(300_000, 65_537), one(400_000, 65_536), "uids"},
		{slices.Concat(one(300_000, 65_536), []wire.IDRange{{Inside: 65_536, Outside: 500_000, Count: 65_536}}), one(400_000, 65_536), "uids"},
	} {
		h := hardened()
		h.UIDMap, h.GIDMap = tt.uids, tt.gids
		err := VerifyHardening(h, want)
		if (err == nil) != (tt.text == "") || err != nil && (!errors.Is(err, ErrUserNamespace) || !strings.Contains(err.Error(), "it maps the "+tt.text)) {
			t.Errorf("%v, %v: error %v, want one about %q", tt.uids, tt.gids, err, tt.text)
		}
	}
}

func TestAttest(t *testing.T) {
	h := hardened()
	h.Kernel, h.Version, h.Localhost = "Linux\x1b[0m", "v1", []string{"127.0.0.1", "::1\a"}
	h.Tmpfs = []wire.Mount{{Path: "/tmp", Bytes: 5}}
	h.Limits = wire.Limits{MemoryBytes: -1, PIDs: 64}
	h.UIDMap, h.GIDMap = wire.ParseIDMap("         0     300000      65536\n"), wire.ParseIDMap("0 1000 1\n1 100000 65535\n")
	want := sandbox.Attestation{
		Kernel: "Linux?[0m", GuestVersion: "v1", User: "10001:10001", GuestUser: "0:0",
		Capabilities: []string{}, GuestCapabilities: []string{"CAP_KILL", "CAP_SETGID", "CAP_SETUID", "CAP_SETPCAP"},
		NoNewPrivileges: true, Seccomp: "filter", Network: "none", Localhost: []string{"127.0.0.1", "::1?"}, RootReadOnly: true,
		Namespaces: []string{"pid"}, UIDMap: "0 300000 65536", GIDMap: "0 1000 1, 1 100000 65535", Identities: 1, KillMethod: "gid",
		Limits: sandbox.AttestedLimits{PIDs: 64, TmpBytes: 5},
	}
	if diff := cmp.Diff(want, Attest(h)); diff != "" {
		t.Errorf("attestation (-want +got):\n%s", diff)
	}
}
