package spawn

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// enterTries bounds how often a directory is resolved. The kernel does not
// follow ".." while anything on the machine is renamed or mounted, and returns
// EAGAIN.
const enterTries = 100

// enterDirectory makes dir, below the workspace, the process's working
// directory, so that the next child starts in it. It runs with the commands'
// identity. The kernel resolves the path within the workspace, and the result
// is entered by its descriptor, so that nothing can be swapped in between. With
// noLinks it follows no symlinks. Nothing else in the guest uses the process's
// working directory.
func (s *Spawner) enterDirectory(dir string, noLinks bool) error {
	if dir == "" {
		dir = "."
	}
	if dir == "." && s.inDir == "." {
		return nil
	}
	s.inDir = ""
	resolve := uint64(unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS)
	if noLinks {
		resolve |= unix.RESOLVE_NO_SYMLINKS
	}
	var fd int
	var err error
	s.helper.Do(func() { // this thread's filter, the commands', refuses openat2
		for range enterTries {
			fd, err = unix.Openat2(s.dir, dir, &unix.OpenHow{
				Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC,
				Resolve: resolve,
			})
			if err != unix.EAGAIN {
				return
			}
		}
	})
	if err == unix.ENOSYS || err == unix.EPERM { // gVisor, old kernels and profiles
		if noLinks {
			return s.enterByName(dir)
		}
		return s.enterByRoot(dir)
	}
	if err != nil {
		return dirError(dir, err)
	}
	defer unix.Close(fd)
	return s.enterOpened(fd, dir)
}

// enterOpened enters dir by its descriptor.
func (s *Spawner) enterOpened(fd int, dir string) error {
	if err := unix.Fchdir(fd); err != nil {
		return dirError(dir, err)
	}
	s.inDir = dir
	return nil
}

// enterByRoot is enterDirectory without noLinks and without openat2.
func (s *Spawner) enterByRoot(dir string) error {
	f, err := s.root.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
	if err != nil {
		return dirError(dir, err)
	}
	defer func() { _ = f.Close() }()
	return s.enterOpened(int(f.Fd()), dir)
}

// enterByName is enterDirectory with noLinks, without openat2: it opens one path
// element at a time.
func (s *Spawner) enterByName(dir string) error {
	at := s.dir
	for name := range strings.SplitSeq(path.Clean(dir), "/") {
		if name == ".." {
			return dirError(dir, unix.EXDEV)
		}
		fd, err := unix.Openat(at, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if at != s.dir {
			_ = unix.Close(at)
		}
		if err != nil {
			return dirError(dir, err)
		}
		at = fd
	}
	defer unix.Close(at)
	return s.enterOpened(at, dir)
}

func dirError(dir string, err error) error {
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		switch errno {
		case unix.EXDEV:
			err = errors.New("leads outside the workspace")
		case unix.ENOENT:
			err = errors.New("does not exist")
		case unix.ELOOP:
			err = errors.New("goes through a symlink")
		default:
			err = errno
		}
	} else {
		err = errors.New("leads outside the workspace")
	}
	return fmt.Errorf("%w %s: %w", ErrDir, quoteShort(dir), err)
}

// findProgram looks a program up as a shell does, with the commands' identity
// and in their working directory.
func findProgram(name string, env []string) (string, error) {
	if name == "" {
		return "", &Failure{Code: 127, Text: "no program is named"}
	}
	if strings.Contains(name, "/") {
		return name, nil // exec itself reports its faults
	}
	denied := false
	for dir := range strings.SplitSeq(lookupEnv(env, "PATH"), ":") {
		candidate := path.Join(dir, name) // only name for an empty dir
		if !strings.Contains(candidate, "/") {
			candidate = "./" + candidate
		}
		var st unix.Stat_t
		if err := unix.Stat(candidate, &st); err != nil || st.Mode&unix.S_IFMT == unix.S_IFDIR {
			continue
		}
		if unix.Faccessat(unix.AT_FDCWD, candidate, unix.X_OK, unix.AT_EACCESS) == nil {
			return candidate, nil
		}
		denied = true
	}
	if denied {
		return "", &Failure{Code: 126, Text: quoteShort(name) + ": permission denied"}
	}
	return "", &Failure{Code: 127, Text: quoteShort(name) + ": not found"}
}

// lookupEnv returns the last value of a variable, as a shell would set it.
func lookupEnv(env []string, name string) (value string) {
	for _, e := range env {
		if v, ok := strings.CutPrefix(e, name+"="); ok {
			value = v
		}
	}
	return value
}
