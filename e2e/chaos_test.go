package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/api/types/volume"
	"github.com/docker/docker/client"

	"github.com/caisson-run/caisson/sandbox/sandboxtest/privateengine"
)

// chaosSessions is how many sessions TestChaos runs; CHAOS_SESSIONS overrides
// it, and CHAOS_SEED repeats a run.
const chaosSessions = 30

// chaosAtOnce is how many of them run at the same time.
const chaosAtOnce = 4

// fault is what happens to one session of the chaos.
type fault string

const (
	faultNone      fault = "none"
	faultKill      fault = "SIGKILL of caisson"
	faultTerminate fault = "SIGTERM of caisson"
	faultGuest     fault = "SIGKILL of the guest, or of gVisor's sandbox"
	faultCommand   fault = "SIGKILL of a command's process"
)

// chaos is one run of many sessions with accidents.
type chaos struct {
	m       *machine
	engine  *privateengine.Engine
	scripts []string
	tmp     string

	mu     sync.Mutex
	count  map[string]int // by backend and fault, and by outcome
	hits   map[fault]int
	wrong  int // sessions that ended as they must not
	swept  int // sessions that removed what others had left
	killed int // of the engine
}

// TestChaos runs many sessions on all backends, with random SIGKILLs of caisson,
// of guests, of commands and of an engine. Afterwards nothing is left of them,
// and sessions that lived beside them all the time noticed nothing.
func TestChaos(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: guests and engines are killed from outside")
	}
	for _, backend := range backendNames {
		needBackend(t, backend)
	}
	sessions, seed := fromEnv(t, "CHAOS_SESSIONS", chaosSessions), fromEnv(t, "CHAOS_SEED", int(time.Now().UnixNano()&0xffffff))
	t.Logf("%d sessions; CHAOS_SEED=%d repeats the choices", sessions, seed)
	binaries(t)

	c := newChaos(t)
	siblings := c.siblings(t)
	before := c.listing(t)
	begun := time.Now()
	stop := c.killEngine(t, rand.New(rand.NewPCG(uint64(seed), 1)))
	c.runAll(t, sessions, seed)
	stop()
	t.Logf("%d sessions in %s; the engine was killed, stopped or frozen %d times; %d sessions removed what others had left",
		sessions, time.Since(begun).Round(time.Second), c.killed, c.swept)
	for _, key := range slices.Sorted(maps.Keys(c.count)) {
		t.Logf("  %4d  %s", c.count[key], key)
	}

	c.collect(t)
	c.wantListing(t, before)
	for _, s := range siblings {
		s.m.release(t, s.run)
	}
	c.collect(t)
	for _, f := range []fault{faultKill, faultTerminate, faultGuest, faultCommand} {
		if c.hits[f] == 0 && sessions >= chaosSessions {
			t.Errorf("control: no session met a %s", f)
		}
	}
	if (c.killed == 0 || c.swept == 0) && sessions >= chaosSessions {
		t.Error("control: the engine was never killed, or nothing was ever left to remove")
	}
}

func fromEnv(t *testing.T, name string, def int) int {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return def
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("%s=%s is no number above 0", name, text)
	}
	return n
}

// newChaos makes a machine whose docker is a private engine, and a session on
// each backend, so that what is made once and kept (skeletons, copies of the
// guest) is there.
func newChaos(t *testing.T) *chaos {
	t.Helper()
	c := &chaos{m: newMachine(t), engine: privateengine.New(t), count: map[string]int{}, hits: map[fault]int{}}
	c.tmp = filepath.Join(filepath.Dir(c.m.home), "tmp")
	if err := os.Mkdir(c.tmp, 0o777); err != nil {
		t.Fatal(err)
	}
	c.m.env = append(c.m.env, "DOCKER_HOST="+c.engine.Host(), "TMPDIR="+c.tmp)
	commands := []string{
		"echo quick",
		"echo >made; sleep 0.2; cat made",
		"(setsid sh -c 'trap \"\" TERM; sleep 100' &) ; sleep 0.1; echo daemon",
		"for i in 1 2 3 4 5 6 7 8; do sh -c 'sleep 0.3' & done; wait; echo many",
		"sleep 0.6; echo slow",
		"head -c 3000000 /dev/zero | tr '\\0' x; echo big",
	}
	for i, command := range commands {
		path := filepath.Join(filepath.Dir(c.m.home), fmt.Sprintf("script%d.yaml", i))
		turns := []scriptTurn{{Calls: []scriptCall{shell("echo first"), shell(command + "; : chaos-marker")}}, {Text: "Done."}}
		writeFile(t, path, fmt.Sprintf("version: 1\nname: chaos\ntask: x\nturns: %s\n", mustJSON(t, turns)), 0o644)
		c.scripts = append(c.scripts, path)
	}
	for _, backend := range backendNames {
		out := c.m.run(t, c.args(backend, 0)...)
		out.want(t, 0)
	}
	return c
}

// args are those of a session on the n-th workspace.
func (c *chaos) args(backend string, n int) []string {
	workspace := filepath.Join(filepath.Dir(c.m.home), fmt.Sprintf("ws%d", n%3))
	_ = os.Mkdir(workspace, 0o755) // it may be there
	mode := "bind"
	if n%4 == 3 {
		mode = "overlay"
	}
	return []string{
		"run", "--workspace", workspace, "--policy", "ci", "--json", "--grace", "200ms", "--backend", backend, "--mode", mode,
		"--model", "replay/" + c.scripts[n%len(c.scripts)], "x",
	}
}

// sibling is a session that lives beside the chaos.
type sibling struct {
	m   *machine
	run *running
}

// siblings start one session a backend with the same state folder; the one on
// docker has the machine's engine, because the private one is killed.
func (c *chaos) siblings(t *testing.T) []sibling {
	t.Helper()
	var all []sibling
	for _, backend := range backendNames {
		m := *c.m
		m.patience = 2 * time.Hour
		m.workspace = filepath.Join(filepath.Dir(c.m.home), "sibling-"+backend)
		if err := os.Mkdir(m.workspace, 0o755); err != nil {
			t.Fatal(err)
		}
		m.env = slices.DeleteFunc(slices.Clone(m.env), func(v string) bool { return v == "DOCKER_HOST="+c.engine.Host() })
		run, _ := m.live(t, backend, "--command-time", "2h")
		all = append(all, sibling{&m, run})
	}
	return all
}

// runAll runs the sessions, some at once, in an order of backends and faults
// that the seed gives.
func (c *chaos) runAll(t *testing.T, sessions, seed int) {
	t.Helper()
	work := make(chan int)
	var workers sync.WaitGroup
	for range chaosAtOnce {
		workers.Go(func() {
			for n := range work {
				c.session(t, n, rand.New(rand.NewPCG(uint64(seed), uint64(n)+2)))
			}
		})
	}
	for n := range sessions {
		if c.failures() > 5 {
			t.Errorf("given up after %d sessions", n)
			break
		}
		work <- n
	}
	close(work)
	workers.Wait()
}

func (c *chaos) failures() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.wrong
}

// session runs one session and its accident, and judges how it ended.
func (c *chaos) session(t *testing.T, n int, r *rand.Rand) {
	backend := []string{"runc", "runc", "runc", "docker", "gvisor"}[r.IntN(5)]
	// In turn, so that a small number of sessions meets each.
	what := []fault{faultKill, faultGuest, faultNone, faultTerminate, faultCommand, faultKill, faultNone}[n%7]
	if what == faultCommand && backend == "gvisor" {
		backend = "runc" // gVisor's commands are no processes of the host
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), 3*time.Minute, errors.New("a session of the chaos does not end"))
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(binaries(t), "caisson"), c.args(backend, n)...)
	cmd.Dir, cmd.Env = c.m.home, c.m.env
	out, errOut := new(follower), new(follower)
	cmd.Stdout, cmd.Stderr = out, errOut
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Error(err)
		return
	}
	ended := make(chan struct{})
	hit := make(chan bool, 1)
	go func() { hit <- c.strike(what, backend, cmd.Process, out, ended, r) }()
	err := cmd.Wait()
	close(ended)
	c.judge(t, n, backend, what, <-hit, cmd, err, out.String(), errOut.String())
	if ctx.Err() != nil {
		t.Errorf("session %d on %s (%s): %v\n%s", n, backend, what, context.Cause(ctx), errOut)
	}
}

// strike does the accident, once its target is there and a random time has
// passed, and says whether it hit.
func (c *chaos) strike(what fault, backend string, caisson *os.Process, out *follower, ended <-chan struct{}, r *rand.Rand) bool {
	if what == faultNone {
		return false
	}
	late := time.Duration(r.IntN(600)) * time.Millisecond
	if what == faultGuest || what == faultCommand {
		late = time.Duration(r.IntN(150)) * time.Millisecond
	}
	select {
	case <-time.After(late):
	case <-ended:
		return false
	}
	switch what {
	case faultKill:
		return caisson.Signal(syscall.SIGKILL) == nil
	case faultTerminate:
		return caisson.Signal(syscall.SIGTERM) == nil
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		if c.strikeInside(what, backend, out.String()) {
			return true
		}
		select {
		case <-tick.C:
		case <-ended:
			return false
		}
	}
}

// strikeInside kills the guest, or a process of a command, of the session whose
// records these are.
func (c *chaos) strikeInside(what fault, backend, text string) bool {
	var started struct {
		Session string
		Payload struct{ Attestation struct{ Container string } }
	}
	for line := range strings.Lines(text) {
		if strings.Contains(line, `"sandbox.started"`) && json.Unmarshal([]byte(line), &started) != nil {
			return false
		}
	}
	id := started.Payload.Attestation.Container
	if id == "" {
		return false
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return false
	}
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		line, _ := os.ReadFile(filepath.Join("/proc", entry.Name(), "cmdline"))
		group, _ := os.ReadFile(filepath.Join("/proc", entry.Name(), "cgroup"))
		if !bytes.Contains(group, []byte(id)) && !bytes.Contains(line, []byte(id)) {
			continue
		}
		isCommand := bytes.Contains(line, []byte("chaos-marker"))
		isGuest := bytes.HasPrefix(line, []byte("/.caisson/guest")) || backend == "gvisor" && bytes.HasPrefix(line, []byte("runsc-"))
		if what == faultCommand && isCommand || what == faultGuest && isGuest {
			return syscall.Kill(pid, syscall.SIGKILL) == nil
		}
	}
	return false
}

// judge says whether an end fits what happened. An engine that is killed may
// end any session on it, in a typed way.
func (c *chaos) judge(t *testing.T, n int, backend string, what fault, hit bool, cmd *exec.Cmd, err error, out, errOut string) {
	t.Helper()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Errorf("session %d: %v", n, err)
		return
	}
	status := cmd.ProcessState.ExitCode()
	if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		status = 128 + int(ws.Signal())
	}
	allowed := []int{0}
	if hit {
		switch what {
		case faultKill:
			allowed = append(allowed, 137)
		case faultTerminate:
			allowed = append(allowed, 143)
		case faultGuest:
			allowed = append(allowed, 44, 45)
		}
	}
	if backend == "docker" {
		allowed = append(allowed, 1, 44, 45) // 1: it was done, and could not be removed
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count[fmt.Sprintf("%-6s %s: status %d", backend, what, status)]++
	if hit {
		c.hits[what]++
	}
	if first, _, _ := strings.Cut(out, "\n"); strings.Contains(first, `"removed":[{`) {
		c.swept++
	}
	if !slices.Contains(allowed, status) {
		c.wrong++
		t.Errorf("session %d on %s (%s, hit %v) ended with %d, want one of %v\nstderr: %s\nlast records:\n%s", n, backend, what, hit, status, allowed, errOut, tail(out, 4))
	}
	if status == 0 && (what == faultNone || !hit) && !strings.Contains(out, "first") {
		t.Errorf("session %d on %s has no output of its command", n, backend)
	}
}

// killEngine kills, stops and freezes the private engine at random times until
// the function that it returns is called; then the engine runs.
func (c *chaos) killEngine(t *testing.T, r *rand.Rand) func() {
	t.Helper()
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-time.After(time.Duration(100+r.IntN(900)) * time.Millisecond):
			case <-stop:
				return
			}
			switch r.IntN(3) {
			case 0:
				c.engine.Kill(t)
				c.engine.Start(t)
			case 1:
				c.engine.Stop(t)
				c.engine.Start(t)
			default:
				c.engine.Freeze(t)
				time.Sleep(time.Duration(r.IntN(1000)) * time.Millisecond)
				c.engine.Thaw(t)
			}
			c.killed++
		}
	}()
	return func() {
		close(stop)
		<-done
	}
}

// collect runs caisson sandbox gc, which must be able to remove everything.
func (c *chaos) collect(t *testing.T) {
	t.Helper()
	out := c.m.run(t, "sandbox", "gc")
	out.want(t, 0)
	t.Logf("gc removed %d things", strings.Count("\n"+out.stdout, "\nremoved"))
}

// wantListing waits until the listing is what it was.
func (c *chaos) wantListing(t *testing.T, before map[string][]string) {
	t.Helper()
	var after map[string][]string
	timeout := time.Now().Add(time.Minute)
	for {
		after = c.listing(t)
		same := true
		for kind, was := range before {
			if kind == "processes" { // one that was just ending may be gone
				was = slices.DeleteFunc(slices.Clone(was), func(p string) bool { return !slices.Contains(after[kind], p) })
			}
			same = same && slices.Equal(was, after[kind])
		}
		if same {
			break
		}
		if time.Now().After(timeout) {
			for _, kind := range slices.Sorted(maps.Keys(before)) {
				for _, thing := range after[kind] {
					if !slices.Contains(before[kind], thing) {
						t.Errorf("left: %s %s", kind, thing)
					}
				}
				for _, thing := range before[kind] {
					if !slices.Contains(after[kind], thing) {
						t.Errorf("gone: %s %s", kind, thing)
					}
				}
			}
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	for _, kind := range slices.Sorted(maps.Keys(before)) {
		t.Logf("%s: %d before, %d after", kind, len(before[kind]), len(after[kind]))
	}
	shims := slices.DeleteFunc(processesNaming(t, c.engine.Dir()+"/"), func(p string) bool { return !strings.Contains(p, "containerd-shim") })
	t.Logf("containers that the killed engine forgot, and its users can't see: %d", len(shims))
}

// listing lists everything on this machine that the chaos could have left: what
// names its folders or sessions, and all that its engine has.
func (c *chaos) listing(t *testing.T) map[string][]string {
	t.Helper()
	root := filepath.Dir(c.m.home)
	words := []string{root, c.engine.Dir() + "/"}
	sessions, err := os.ReadDir(filepath.Join(c.m.stateDir(), "sessions"))
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, s := range sessions {
		ids = append(ids, s.Name())
	}
	list := map[string][]string{
		"cgroups": cgroupsNaming(t, ids...), "mounts": mountPoints(t, append(words, ids...)...), "processes": pids(t, append(words, ids...)...),
		"temporary files": tree(t, c.tmp), "cleanup lists": glob(t, c.m.stateDir(), "cleanup/*.json"), "damaged cleanup lists": glob(t, c.m.stateDir(), "cleanup/*.damaged"),
		"sandbox folders": glob(t, c.m.stateDir(), "sessions/*/sandbox"), "bundles": c.m.bundles(t),
		"runtime state":      append(glob(t, c.m.stateDir(), "oci/runc/*"), glob(t, c.m.stateDir(), "oci/gvisor/*")...),
		"network namespaces": append(glob(t, c.engine.Dir(), "exec/netns/*"), glob(t, "/", "run/netns/*")...),
		"placeholders":       glob(t, root, "ws*/.git"),
	}
	c.engineListing(t, list)
	for _, things := range list {
		slices.Sort(things)
	}
	return list
}

// engineListing adds what the private engine has.
func (c *chaos) engineListing(t *testing.T, list map[string][]string) {
	t.Helper()
	e, err := client.NewClientWithOpts(client.WithHost(c.engine.Host()), client.WithAPIVersionNegotiation())
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	ctx := t.Context()
	containers, err := e.ContainerList(ctx, container.ListOptions{All: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range containers {
		list["containers"] = append(list["containers"], x.ID+" "+strings.Join(x.Names, " "))
	}
	images, err := e.ImageList(ctx, image.ListOptions{All: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range images {
		list["images"] = append(list["images"], x.ID)
	}
	volumes, err := e.VolumeList(ctx, volume.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range volumes.Volumes {
		list["volumes"] = append(list["volumes"], x.Name)
	}
	for _, kind := range []string{"containers", "images", "volumes"} {
		if list[kind] == nil {
			list[kind] = []string{}
		}
	}
}

// pids lists processes by what they run, each once: an engine that was restarted
// is the same one under another number, and a sibling's command has children.
func pids(t *testing.T, words ...string) []string {
	t.Helper()
	var found []string
	for _, p := range processesNaming(t, words...) {
		_, line, _ := strings.Cut(p, ": ")
		if strings.Contains(line, "containerd-shim") {
			// An engine that is killed between starting a container and noting
			// that forgets it: its users can neither see nor remove it. What the
			// engine knows is in the listing of containers.
			continue
		}
		found = append(found, line)
	}
	slices.Sort(found)
	return slices.Compact(found)
}

func mountPoints(t *testing.T, words ...string) []string {
	t.Helper()
	var found []string
	for _, m := range mountsNaming(t, words...) {
		fields := strings.Fields(m)
		// An engine that is killed while it makes a container's first layer
		// leaves that mounted.
		if len(fields) > 5 && !strings.HasSuffix(fields[5], "-init/merged") {
			found = append(found, fields[5]) // mount point; "mount" is the first
		}
	}
	return found
}

func glob(t *testing.T, root, pattern string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(root, pattern))
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func tree(t *testing.T, root string) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if path != root {
			found = append(found, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}
