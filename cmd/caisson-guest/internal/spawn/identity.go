package spawn

import (
	"errors"
	"fmt"
	"path"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/identity"
)

func (s *Spawner) userOf(n int) (uid, gid uint32) {
	if n == 0 {
		return s.o.UID, s.o.GID
	}
	id := s.o.IdentityBase + uint32(n)
	return id, id
}

// countIdentities returns the number of identities, including 0: one if the
// thread can't take the first and the last of the others.
func (s *Spawner) countIdentities() int {
	last := int(s.o.IdentityCount)
	if !s.o.Separate || last == 0 {
		return 1
	}
	for _, n := range []int{1, last} {
		if err := s.withIdentity(n, func() error { return nil }); err != nil {
			s.lost = append(s.lost, "commands have one identity: this container has no users for others: "+err.Error())
			return 1
		}
	}
	return 1 + last
}

// withIdentity runs f with the effective user and group of an identity. It
// panics if the thread can't return: the thread, and so the guest, would be
// useless.
func (s *Spawner) withIdentity(n int, f func() error) error {
	if !s.o.Separate {
		return f()
	}
	uid, gid := s.userOf(n)
	return s.withUser(uid, gid, f)
}

func (s *Spawner) withUser(uid, gid uint32, f func() error) error {
	err := identity.SetEffective(uid, gid)
	if err == nil {
		err = f()
	}
	if back := identity.Restore(0, 0); back != nil {
		panic("caisson-guest: " + back.Error())
	}
	return err
}

// makeHome makes an identity's directories before its first command. They
// belong to it, in a directory that only it may search. Other commands can't
// interfere: they can make nothing in IdentityDir, nor in the identity's
// directory, which meanwhile only its group may write.
func (s *Spawner) makeHome(n int) error {
	if n == 0 || s.homes[n] {
		return nil
	}
	own := s.homeOf(n)
	_, gid := s.userOf(n)
	err := errors.Join(
		makeDir(s.o.IdentityDir, 0o755),
		s.withUser(0, gid, func() error { return makeDir(own, 0o750) }),
		unix.Chmod(own, 0o770),
		s.withIdentity(n, func() error {
			return errors.Join(makeDir(path.Join(own, "home"), 0o700), makeDir(path.Join(own, "tmp"), 0o700))
		}),
		unix.Chmod(own, 0o750),
	)
	if err != nil {
		return fmt.Errorf("make the home of identity %d: %w", n, err)
	}
	s.homes[n] = true
	return nil
}

// homeOf returns the directory with an identity's home and temporary files.
func (s *Spawner) homeOf(n int) string { return path.Join(s.o.IdentityDir, strconv.Itoa(n)) }

// makeDir makes a directory that may exist.
func makeDir(name string, mode uint32) error {
	if err := unix.Mkdir(name, mode); err != nil && err != unix.EEXIST {
		return fmt.Errorf("make %s: %w", name, err)
	}
	return nil
}

// enterHome makes an identity's home the process's working directory.
func (s *Spawner) enterHome(n int) error {
	s.inDir = ""
	home := path.Join(s.homeOf(n), "home")
	if err := unix.Chdir(home); err != nil {
		return dirError(home, err)
	}
	return nil
}
