package oci

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// A runtime waits for its log while that is held, but not after its holder is
// dead.
func TestHeldLog(t *testing.T) {
	b := bundle{dir: t.TempDir()}
	log, err := b.makeLog()
	must(t, err)
	defer log.close()
	if !log.held {
		t.Skip("needs leases: the file system of the temporary directory has none")
	}
	opener := func() <-chan error {
		cmd := exec.CommandContext(t.Context(), "sh", "-c", `echo '{"level":"error","msg":"it says so"}' >>"$0"`, b.logPath())
		must(t, cmd.Start())
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		return ended
	}
	ended := opener()
	select {
	case err := <-ended:
		t.Fatalf("control: a held log was opened: %v", err)
	case <-time.After(200 * time.Millisecond):
	}
	must(t, log.releaseLease())
	must(t, <-ended)
	if said := log.readErrors(); said != "it says so" {
		t.Errorf("messages: %q", said)
	}
	must(t, os.Remove(b.logPath()))
	again, err := b.makeLog()
	must(t, err)
	ended = opener()
	again.close() // as the kernel does for a process that is killed
	must(t, <-ended)
}

// TestKilledWhileItStarts kills a Caisson at random moments of a start. No
// runtime may wait for it, and one sweep removes the rest.
func TestKilledWhileItStarts(t *testing.T) {
	both(t, func(t *testing.T, k Kind) {
		b := newBed(t, k, os.Geteuid())
		o := b.backend.options
		work := filepath.Join(filepath.Dir(b.workspace), "other")
		must(t, os.Mkdir(work, 0o755))
		for i := range 15 {
			cmd := exec.CommandContext(t.Context(), os.Args[0])
			cmd.Env = []string{ownerHelper + "=" + string(k) + ":" + o.RuntimePath + ":" + o.GuestPath + ":" + o.StateDir + ":" + work, "PATH=" + os.Getenv("PATH")}
			must(t, cmd.Start())
			time.Sleep(time.Duration(20+i*4) * time.Millisecond)
			must(t, cmd.Process.Kill())
			_ = cmd.Wait() // it was killed
			deadline := time.Now().Add(time.Minute)
			for {
				left, err := processesNaming(cgroupPrefix + orphan)
				must(t, err)
				if len(left) == 0 {
					break
				}
				if time.Now().After(deadline) {
					t.Fatalf("after %d ms a process waits for ever: %q", 20+i*4, left)
				}
				pauseBriefly()
			}
			_, err := b.backend.Sweep(t.Context())
			must(t, err)
			// A half-written cleanup list names nothing. Sweeps leave it for an
			// hour.
			_ = os.Remove(filepath.Join(o.StateDir, "cleanup", "."+orphan+".json.new"))
			b.nothingLeft(t, orphan)
		}
	})
}
