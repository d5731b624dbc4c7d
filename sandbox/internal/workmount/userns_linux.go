package workmount

import (
	"fmt"
	"os"
	"runtime"
	"syscall"
)

// openUserNamespace returns a descriptor of a new user namespace with these
// maps. Only a process can make one, and a Go process, which has threads, can't
// do so itself (unshare(2): EINVAL). So holder, any executable, is started in
// one under ptrace: it stops at the end of execve(2), before its first
// instruction, and is killed there once the namespace is open.
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
	if killErr := process.Kill(); err == nil && killErr != nil {
		err = killErr
	}
	if _, waitErr := process.Wait(); err == nil && waitErr != nil {
		err = waitErr
	}
	if err != nil {
		if namespace != nil {
			_ = namespace.Close()
		}
		return nil, fmt.Errorf("make user namespace: %w", err)
	}
	return namespace, nil
}

func sysMap(ranges []idRange) []syscall.SysProcIDMap {
	var out []syscall.SysProcIDMap
	for _, r := range ranges {
		out = append(out, syscall.SysProcIDMap{ContainerID: int(r.inside), HostID: int(r.outside), Size: int(r.size)})
	}
	return out
}
