package store

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/images/internal/imagetest"
)

// childEnv makes this test binary take an image: its value is the store's
// directory and the reference.
const childEnv = "CAISSON_IMAGES_CHILD"

func TestMain(m *testing.M) {
	if job := os.Getenv(childEnv); job != "" {
		os.Exit(child(job))
	}
	os.Exit(m.Run())
}

// child takes an image, prints each step and the root, and holds the image
// until its stdin ends.
func child(job string) int {
	dir, text, _ := strings.Cut(job, " ")
	ref, err := images.ParseReference(text)
	if err != nil {
		return 2
	}
	s, err := New(Options{Dir: dir, Platform: "linux/amd64", Keychain: anonymous{}, Progress: func(p Progress) {
		fmt.Printf("step %s %s %d/%d\n", p.Phase, p.Digest, p.Done, p.Total)
		// The test may kill this process here.
		io.ReadFull(os.Stdin, make([]byte, 1))
	}})
	if err != nil {
		fmt.Println("error", err)
		return 1
	}
	root, release, err := s.RootFS(context.Background(), ref)
	if err != nil {
		fmt.Println("error", err)
		return 1
	}
	fmt.Println("root", root.Dir)
	io.Copy(io.Discard, os.Stdin)
	release()
	return 0
}

// process is a child that a test leads step by step.
type process struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	lines *bufio.Scanner
}

func startChild(t *testing.T, dir string, ref images.Reference) *process {
	t.Helper()
	self, err := os.Executable()
	must(t, err)
	p := &process{cmd: exec.Command(self)}
	p.cmd.Env = append(os.Environ(), childEnv+"="+dir+" "+ref.String())
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	must(t, err)
	p.cmd.Stderr = os.Stderr
	p.lines = bufio.NewScanner(out)
	must(t, p.cmd.Start())
	t.Cleanup(func() { p.kill() })
	return p
}

// next returns the child's next line.
func (p *process) next() string {
	if !p.lines.Scan() {
		return ""
	}
	return p.lines.Text()
}

func (p *process) proceed() { p.stdin.Write([]byte("\n")) }

func (p *process) kill() {
	p.cmd.Process.Kill()
	p.cmd.Wait()
}

// run leads the child to its root.
func (p *process) run() (root string, steps []string) {
	for {
		line := p.next()
		if dir, ok := strings.CutPrefix(line, "root "); ok {
			return dir, steps
		}
		if !strings.HasPrefix(line, "step ") {
			return "", append(steps, line)
		}
		steps = append(steps, line)
		p.proceed()
	}
}

// TestKilledAtAnyStep kills a process at each of its steps in turn. The store
// must contain nothing half made, and the next process takes the image.
func TestKilledAtAnyStep(t *testing.T) {
	reg := newRegistry(t)
	reg.push(t, "x:1", simple(t, imagetest.File("a", strings.Repeat("x", 100_000))))
	ref := reg.ref(t, "x:1")
	done := false
	for at := 0; !done; at++ {
		if at > 100 {
			t.Fatal("no end of steps")
		}
		dir := storeDir(t)
		p := startChild(t, dir, ref)
		for range at {
			if line := p.next(); strings.HasPrefix(line, "root ") {
				done = true
				break
			}
			p.proceed()
		}
		if !done {
			p.next() // so that it stands in a step, or holds the root
		}
		p.kill()

		s := openStore(t, dir)
		pruned, err := s.Prune(t.Context(), 0)
		if err != nil {
			t.Fatalf("after a kill at step %d: %v", at, err)
		}
		if at > 1 && !done && pruned.Orphans == 0 && pruned.Bytes == 0 {
			t.Errorf("a kill at step %d left nothing to clean up: was it a kill at work?", at)
		}
		noHalves(t, s)
		root, release := rootfs(t, s, ref)
		if read(t, root, "a") != strings.Repeat("x", 100_000) {
			t.Errorf("after a kill at step %d the root is another", at)
		}
		release()
		if done && at < 8 {
			t.Errorf("there were %d steps", at)
		}
	}
}

// TestKilledAtAnyTime kills in the middle of steps, while the image is
// unpacked.
func TestKilledAtAnyTime(t *testing.T) {
	reg := newRegistry(t)
	var many []imagetest.Item
	for i := range 400 {
		many = append(many, imagetest.File(fmt.Sprint("d/", i), strings.Repeat("x", 500)))
	}
	reg.push(t, "x:1", simple(t, many...))
	ref := reg.ref(t, "x:1")
	halves := 0
	for i := 0; i < 8 || halves == 0 && i < 80; i++ { // a busy machine may kill late
		dir := storeDir(t)
		p := startChild(t, dir, ref)
		p.stdin.Write([]byte(strings.Repeat("\n", 1000)))
		for unpacking := 0; unpacking < 2; {
			line := p.next()
			if line == "" || strings.HasPrefix(line, "root ") {
				break
			}
			if strings.HasPrefix(line, "step unpack") {
				unpacking++
			}
		}
		time.Sleep(time.Duration(i%8) * 2 * time.Millisecond)
		p.kill()
		s := openStore(t, dir)
		pruned, err := s.Prune(t.Context(), time.Hour)
		must(t, err)
		halves += pruned.Orphans
		noHalves(t, s)
		root, release := rootfs(t, s, ref)
		entries, err := os.ReadDir(filepath.Join(root.Dir, "d"))
		if err != nil || len(entries) != 400 {
			t.Errorf("%d files, %v", len(entries), err)
		}
		release()
	}
	if halves == 0 {
		t.Error("no kill hit the work: the test shows nothing")
	}
}

// Two processes take one image at once. One unpacks, the other waits.
func TestTwoProcesses(t *testing.T) {
	reg := newRegistry(t)
	reg.push(t, "x:1", simple(t, imagetest.File("a", "x")))
	dir, ref := storeDir(t), reg.ref(t, "x:1")
	one, two := startChild(t, dir, ref), startChild(t, dir, ref)
	// The second begins while the first unpacks.
	for {
		line := one.next()
		if line == "" || strings.HasPrefix(line, "step unpack") {
			break
		}
		one.proceed()
	}
	waited := false
	for !waited {
		line := two.next()
		if line == "" || strings.HasPrefix(line, "root ") || strings.HasPrefix(line, "step unpack") {
			t.Fatalf("the second says %q while the first unpacks", line)
		}
		waited = strings.HasPrefix(line, "step wait")
		two.proceed()
	}
	one.proceed()
	first, _ := one.run()
	second, rest := two.run()
	if first == "" || first != second {
		t.Errorf("the roots are %q and %q", first, second)
	}
	for _, line := range rest {
		if strings.HasPrefix(line, "step unpack") || strings.HasPrefix(line, "step download") {
			t.Errorf("the second did it again: %s", line)
		}
	}

	s := openStore(t, dir)
	if done, err := s.Prune(t.Context(), 0); err != nil || len(done.Kept) != 1 || !pathExists(first) {
		t.Errorf("prune beside two that live: %+v, %v", done, err)
	}
	one.kill()
	if done, err := s.Prune(t.Context(), 0); err != nil || len(done.Kept) != 1 || !pathExists(first) {
		t.Errorf("prune beside one that lives: %+v, %v", done, err)
	}
	two.kill()
	if done, err := s.Prune(t.Context(), 0); err != nil || len(done.Images) != 1 || pathExists(first) {
		t.Errorf("prune after both: %+v, %v", done, err)
	}
	noHalves(t, s)
}
