package oci

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/sandbox"
)

func (b *bed) works(t *testing.T, session string) error {
	t.Helper()
	sb, err := b.backend.Create(t.Context(), b.spec(t, session))
	if err != nil {
		return err
	}
	defer func() { must(t, sb.Destroy(context.Background())) }()
	p, err := sb.Start(t.Context(), sandbox.Command{Argv: []string{"/bin/true"}})
	if err != nil {
		return err
	}
	_, err = p.Wait()
	return err
}

// On a full disk a start fails with the kernel's error and leaves nothing. With
// room again it works.
func TestStateDiskFull(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: to mount a small disk")
	}
	both(t, func(t *testing.T, k Kind) {
		b := newBed(t, k, 0)
		must(t, unix.Mount("small", b.state, "tmpfs", 0, "size=16m,mode=0700"))
		t.Cleanup(func() { must(t, unix.Unmount(b.state, unix.MNT_DETACH)) })
		must(t, b.works(t, "ses_first")) // the control, which also fills the caches
		b.spec(t, "ses_full")            // the session's directory, as its owner makes it
		filler := filepath.Join(b.state, "filler")
		f, err := os.Create(filler)
		must(t, err)
		for err == nil {
			_, err = f.Write(make([]byte, 4096))
		}
		must(t, f.Close())
		if err := b.works(t, "ses_full"); err == nil || !strings.Contains(err.Error(), "no space left on device") {
			t.Errorf("a start on a full disk: %v", err)
		}
		b.nothingLeft(t, "ses_full")
		must(t, os.Remove(filler))
		must(t, b.works(t, "ses_again"))
		b.nothingLeft(t, "ses_again")
	})
}

// Wherever a start finds no free descriptor, it fails with the kernel's error
// and leaves nothing.
func TestFewDescriptors(t *testing.T) {
	both(t, func(t *testing.T, k Kind) {
		b := newBed(t, k, os.Geteuid())
		must(t, b.works(t, "ses_first"))
		var before unix.Rlimit
		must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &before))
		t.Cleanup(func() { must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &before)) })
		failed := 0
		for room := uint64(1); room < 24; room += 3 {
			spec := b.spec(t, "ses_few")
			open, err := os.ReadDir("/proc/self/fd")
			must(t, err)
			must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(len(open)) + room, Max: before.Max}))
			sb, err := b.backend.Create(t.Context(), spec)
			must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &before))
			if err == nil {
				must(t, sb.Destroy(context.Background()))
			} else {
				failed++
				if !strings.Contains(err.Error(), "too many open files") {
					t.Errorf("with room for %d: %v", room, err)
				}
			}
			if _, err := b.backend.Sweep(t.Context()); err != nil {
				t.Errorf("with room for %d: sweep: %v", room, err)
			}
			b.nothingLeft(t, "ses_few")
		}
		if failed == 0 {
			t.Error("no start met the limit: the test proves nothing")
		}
		must(t, b.works(t, "ses_again"))
	})
}
