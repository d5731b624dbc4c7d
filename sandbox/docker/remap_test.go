package docker

import (
	"errors"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/docker/docker/api/types/container"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
	"github.com/caisson-run/caisson/sandbox/internal/workmount"
)

// With userns-remap an engine is refused, with a hint, if a workspace's files
// would change their owners, or if its range is unknown or has other users'
// IDs.
func TestRemappedEngines(t *testing.T) {
	for name, tt := range map[string]struct {
		dir     string
		runtime string
		text    string // empty if it is accepted
	}{
		"as it is made":      {dir: "/var/lib/docker/300000.400000"},
		"no range":           {dir: "/var/lib/docker", text: "does not name the range"},
		"half a range":       {dir: "/var/lib/docker/300000", text: "does not name the range"},
		"no number":          {dir: "/var/lib/docker/300000.x", text: "does not name the range"},
		"negative":           {dir: "/var/lib/docker/-1.300000", text: "does not name the range"},
		"root of the host":   {dir: "/var/lib/docker/0.0", text: "users of this machine"},
		"group of root":      {dir: "/var/lib/docker/300000.0", text: "users of this machine"},
		"a user of the host": {dir: "/var/lib/docker/1000.300000", text: "users of this machine"},
		"Caisson's own":      {dir: "/var/lib/docker/2013265920.2013265920", text: "which Caisson"},
		"gVisor":             {dir: "/var/lib/docker/300000.300000", runtime: "runsc", text: "runtime runsc is gVisor"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newFakeBed(t)
			b.backend.options.Runtime = tt.runtime
			b.engine.info.SecurityOptions = append(b.engine.info.SecurityOptions, "name=userns")
			b.engine.info.DockerRootDir = tt.dir
			if os.Geteuid() != 0 {
				tt.text = "only root of its machine"
			}
			_, err := b.backend.Check(t.Context())
			if tt.text == "" {
				if err != nil || b.backend.facts.base != (workmount.Base{UID: 300_000, GID: 400_000}) {
					t.Errorf("%+v, %v", b.backend.facts.base, err)
				}
				return
			}
			if !errors.Is(err, sandbox.ErrUnsupported) || !strings.Contains(err.Error(), tt.text) || !strings.Contains(err.Error(), ": use ") && !strings.Contains(err.Error(), ": run as root") {
				t.Errorf("error %v, want ErrUnsupported about %q with a hint", err, tt.text)
			}
		})
	}
}

// The guest's user namespace must be the container process's, with the maps
// that the host shows.
func TestVerifyBase(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: a user namespace with the ids of another user")
	}
	ids := []syscall.SysProcIDMap{{HostID: 300_000, Size: workmount.IDCount}}
	process := exec.CommandContext(t.Context(), "/bin/cat")
	process.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids, Pdeathsig: syscall.SIGKILL}
	end, err := process.StdinPipe()
	must(t, err)
	must(t, process.Start())
	defer func() {
		must(t, end.Close())
		must(t, process.Wait())
	}()
	namespace := func(pid string) uint64 {
		info, err := os.Stat("/proc/" + pid + "/ns/user")
		must(t, err)
		return info.Sys().(*syscall.Stat_t).Ino
	}
	one := []wire.IDRange{{Outside: 300_000, Count: workmount.IDCount}}
	good := wire.Hello{Namespaces: map[string]uint64{"user": namespace(strconv.Itoa(process.Process.Pid))}, UIDMap: one, GIDMap: one}
	for name, tt := range map[string]struct {
		change func(h *wire.Hello, pid *int)
		text   string
	}{
		"as it is":         {change: func(*wire.Hello, *int) {}},
		"no process":       {change: func(_ *wire.Hello, pid *int) { *pid = 0 }, text: "PID namespace"},
		"another process":  {change: func(_ *wire.Hello, pid *int) { *pid = os.Getpid() }, text: "user namespace"},
		"another guest":    {change: func(h *wire.Hello, _ *int) { h.Namespaces = map[string]uint64{"user": 1} }, text: "user namespace"},
		"nothing observed": {change: func(h *wire.Hello, _ *int) { h.Namespaces, h.UIDMap = nil, nil }, text: "user namespace"},
		"the host's": {change: func(h *wire.Hello, pid *int) {
			*pid, h.Namespaces = os.Getpid(), map[string]uint64{"user": namespace("self")}
		}, text: "user namespace"},
		"other users":  {change: func(h *wire.Hello, _ *int) { h.UIDMap = []wire.IDRange{{Outside: 400_000, Count: workmount.IDCount}} }, text: "uid_map"},
		"other groups": {change: func(h *wire.Hello, _ *int) { h.GIDMap = slices.Concat(one, one) }, text: "gid_map"},
	} {
		t.Run(name, func(t *testing.T) {
			hello, pid := good, process.Process.Pid
			tt.change(&hello, &pid)
			c := &engineContainer{facts: facts{base: workmount.Base{UID: 300_000, GID: 300_000}}}
			err := c.verifyBase(hello, container.InspectResponse{ContainerJSONBase: &container.ContainerJSONBase{State: &container.State{Pid: pid}}})
			if (err == nil) != (tt.text == "") || err != nil && (!errors.Is(err, sandbox.ErrUnavailable) || !strings.Contains(err.Error(), tt.text)) {
				t.Errorf("error %v, want one about %q", err, tt.text)
			}
		})
	}
}

// An image's user must be in the user namespace, and in no group that marks
// commands.
func TestRemappedAccounts(t *testing.T) {
	for _, tt := range []struct {
		id workmount.Identity
		ok bool
	}{
		{workmount.Identity{UID: 1000, GID: 1000}, true},
		{workmount.Identity{UID: 65_535, GID: 65_535, Groups: []int{65_534}}, true},
		{workmount.Identity{UID: 35_000, GID: 1000}, true},
		{workmount.Identity{UID: 65_536, GID: 1000}, false},
		{workmount.Identity{UID: 1000, GID: 70_000}, false},
		{workmount.Identity{UID: 1000, GID: 35_000}, false},
		{workmount.Identity{UID: 1000, GID: 1000, Groups: []int{30_000}}, false},
		{workmount.Identity{UID: 1000, GID: 1000, Groups: []int{49_999}}, false},
		{workmount.Identity{UID: 1000, GID: 1000, Groups: []int{50_000}}, true},
	} {
		err := checkRange(tt.id)
		if incapable, ok := errors.AsType[*sandbox.IncapableError](err); tt.ok != (err == nil) || err != nil && (!ok || incapable.Hint == "") {
			t.Errorf("%+v: %v", tt.id, err)
		}
	}
}
