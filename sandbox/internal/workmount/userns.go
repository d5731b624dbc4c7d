package workmount

import (
	"cmp"
	"fmt"
	"os"
	"runtime"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// maxNamespaces bounds the namespaces kept, one for each owner of a workspace.
const maxNamespaces = 16

// UserNamespaces keeps the user namespaces that id maps are taken from, one for
// each owner of a workspace. Making one starts a process (4 ms), and it serves
// any number of mounts. The zero value is ready to use. It is safe for
// concurrent use and need not be closed before the process ends.
type UserNamespaces struct {
	mu   sync.Mutex
	kept map[string]*os.File // by their maps
}

// openFor returns a descriptor, for the caller to close, of a namespace with
// these maps.
func (n *UserNamespaces) openFor(holder string, maps idMaps) (*os.File, error) {
	uids, gids := maps.ranges()
	n.mu.Lock()
	defer n.mu.Unlock()
	key := fmt.Sprint(uids, gids)
	kept, ok := n.kept[key]
	if !ok {
		var err error
		if kept, err = openUserNamespace(holder, uids, gids); err != nil {
			return nil, err
		}
		if len(n.kept) >= maxNamespaces {
			n.closeLocked()
		}
		if n.kept == nil {
			n.kept = map[string]*os.File{}
		}
		n.kept[key] = kept
	}
	fd, err := unix.FcntlInt(kept.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, fmt.Errorf("open user namespace: %w", err)
	}
	return os.NewFile(uintptr(fd), "user namespace"), nil
}

// Close closes the namespaces. n may be used again.
func (n *UserNamespaces) Close() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.closeLocked()
}

func (n *UserNamespaces) closeLocked() {
	for _, f := range n.kept {
		_ = f.Close()
	}
	clear(n.kept)
}

// openUserNamespace returns a descriptor of a new user namespace with these
// maps. Go's threads keep this process from making one itself (unshare(2):
// EINVAL). So it starts holder, any executable, in one under ptrace. The
// process stops at the end of execve(2), before its first instruction, and is
// killed there once the namespace is open.
func openUserNamespace(holder string, uids, gids []idRange) (*os.File, error) {
	// The kernel ties the trace to the thread that forked.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("make user namespace: %w", err)
	}
	defer func() { _ = null.Close() }()
	process, err := os.StartProcess(holder, []string{"caisson-userns"}, &os.ProcAttr{
		Dir: "/", Env: []string{}, Files: []*os.File{null, null, null},
		Sys: &syscall.SysProcAttr{
			Cloneflags:                 syscall.CLONE_NEWUSER,
			UidMappings:                sysMap(uids),
			GidMappings:                sysMap(gids),
			GidMappingsEnableSetgroups: true,
			Ptrace:                     true,
			Pdeathsig:                  syscall.SIGKILL,
		},
	})
	if err != nil {
		return nil, fmt.Errorf("make user namespace: %w", err)
	}
	namespace, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", process.Pid))
	killErr := process.Kill()
	_, waitErr := process.Wait()
	if err := cmp.Or(err, killErr, waitErr); err != nil {
		_ = namespace.Close() // of nil it fails
		return nil, fmt.Errorf("make user namespace: %w", err)
	}
	return namespace, nil
}

func sysMap(ranges []idRange) []syscall.SysProcIDMap {
	var out []syscall.SysProcIDMap
	for _, r := range ranges {
		out = append(out, syscall.SysProcIDMap{ContainerID: int(r.disk), HostID: int(r.shown), Size: int(r.size)})
	}
	return out
}
