package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/runner/closers"
	"github.com/caisson-run/caisson/runner/internal/network"
	"github.com/caisson-run/caisson/runner/sessiondir"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
	"github.com/caisson-run/caisson/sandbox/overlay"
	"github.com/caisson-run/caisson/tools/egress"
)

// smokeTestTime bounds the start of a sandbox, which may wait for others.
const smokeTestTime = 2 * time.Minute

// The checks of a started sandbox.
const (
	checkStart   = "sandbox start"
	checkNetwork = "network"
)

// SmokeTest is a sandbox to start.
type SmokeTest struct {
	// Choose returns the backend that a session would have, and its notes.
	Choose func(ctx context.Context) (sandbox.Backend, []string, error)
	// Setup is a session's. Its service is not started.
	Setup sandbox.Setup
	// ImageOK reports that the image's check succeeded.
	ImageOK    bool
	Mode       sandbox.WorkspaceMode
	Target     string // as in sandbox.Workspace
	RefuseLost bool
	StateDir   string
	// Egress also tries the commands' network, with no rule that allows
	// anything.
	Egress bool
}

// SkipSmokeTest returns the findings of a test that was not tried.
func SkipSmokeTest(why string) []Finding {
	return []Finding{{Check: checkStart, Result: Absent, Detail: why}, {Check: checkNetwork, Result: Absent, Detail: why}}
}

// Run starts a sandbox on an empty directory, as a session would, checks that a
// command in it reaches nothing outside, and removes everything that it made.
func (t SmokeTest) Run(ctx context.Context) []Finding {
	if !t.ImageOK && t.Setup.Image.Scheme != images.SchemeHost {
		return SkipSmokeTest("not tried: the image is not here, see above")
	}
	if t.Setup.Image.Scheme == images.SchemeBuild {
		return SkipSmokeTest("not tried: the image would be built first")
	}
	ctx, cancel := context.WithTimeoutCause(ctx, smokeTestTime, fmt.Errorf("%w: no sandbox ran within %s", sandbox.ErrUnavailable, smokeTestTime))
	defer cancel()
	backend, notes, err := t.Choose(ctx)
	if err != nil {
		return SkipSmokeTest("not tried: no backend can be used, see above")
	}
	box, took, undo, err := t.start(ctx, backend)
	if err != nil {
		f := failed(checkStart, err)
		f.Fault = FaultSandbox
		return append([]Finding{f}, SkipSmokeTest("not tried: no sandbox could be started")[1])
	}
	info, err := queryBackend(ctx, backend)
	if err != nil {
		notes = append(notes, err.Error())
	}
	attestation := box.Attestation()
	started := warnOfFileSystem(t.checkAttestation(attestation, info, took, notes), attestation.Workspace, ".")
	reached := checkReach(ctx, box)
	if t.Egress && reached.Result == OK {
		reached = checkEgress(ctx, box, reached)
	}
	if err := undo(); err != nil {
		started = Finding{
			Check: checkStart, Result: Failed, Fault: FaultSandbox,
			Detail: "the sandbox can't be removed: " + err.Error(), Advice: AdviseCollectLater,
		}
	}
	return []Finding{started, reached}
}

// start creates the sandbox; undo destroys it and removes what was made for it.
func (t SmokeTest) start(ctx context.Context, backend sandbox.Backend) (box sandbox.Sandbox, took time.Duration, undo func() error, err error) {
	var undos closers.Stack
	defer undos.CloseOnError(&err)
	records, err := sessiondir.Create(t.StateDir, nil)
	if err != nil {
		return nil, 0, nil, err
	}
	undos.Push(records.Close)
	// The state directory itself is refused as a workspace.
	path, err := makeWorkspace(".", os.TempDir(), filepath.Dir(t.StateDir), "..")
	if path != "" {
		undos.Push(func() error { return os.RemoveAll(path) })
	}
	if err != nil {
		return nil, 0, nil, fmt.Errorf("make a workspace: %w", err)
	}
	dir, err := os.Open(path)
	if err != nil {
		return nil, 0, nil, fmt.Errorf("open the workspace: %w", err)
	}
	undos.Push(dir.Close)
	spec := sandbox.Spec{
		Session: records.Session, Setup: t.Setup, Dir: filepath.Join(records.Path, sessiondir.SandboxDir),
		Workspace: sandbox.Workspace{Path: path, Dir: dir, Mode: t.Mode, Target: t.Target},
	}
	spec.Service, spec.CallerOwnsFiles = nil, true
	if t.Egress {
		spec.Egress = &sandbox.EgressPlan{Names: true}
	}
	if spec.Workspace.Mode.KeepsChanges() {
		layers, err := overlay.Create(filepath.Join(records.Path, sessiondir.OverlayDir), overlay.CreateOptions{Session: records.Session, Path: path, Workspace: dir})
		if err != nil {
			return nil, 0, nil, fmt.Errorf("%w: overlay workspaces are not available here: %w", sandbox.ErrUnsupported, err)
		}
		undos.Push(func() error {
			return errors.Join(layers.End(overlay.Discarded), layers.Close(), os.RemoveAll(layers.Dir()))
		})
		if err := layers.Record(ctx, dir); err != nil {
			return nil, 0, nil, err
		}
		spec.Workspace.Layers = layers.Dir()
	}
	began := time.Now()
	box, err = backend.Create(ctx, spec)
	if err != nil {
		return nil, 0, nil, err
	}
	took = time.Since(began)
	undos.Push(func() error { return box.Destroy(context.WithoutCancel(ctx)) })
	return box, took, undos.Close, nil
}

// makeWorkspace creates an empty directory as similar to the workspace as
// possible, because mounts and mapped owners depend on both: on the same file
// system, if one of the places is, and with the same owner, if Caisson is root.
func makeWorkspace(workspace string, places ...string) (path string, err error) {
	distance := func(place string) int {
		if sameFileSystem(place, workspace) {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(places, func(a, b string) int { return cmp.Compare(distance(a), distance(b)) })
	var errs []error
	for _, place := range places {
		place, err = filepath.Abs(place)
		if err == nil {
			path, err = os.MkdirTemp(place, "caisson-doctor-")
		}
		if err == nil {
			return path, copyOwner(path, workspace)
		}
		errs = append(errs, err)
	}
	return "", errors.Join(errs...)
}

// checkAttestation describes the sandbox. It leaves out losses that are in the
// backend's own finding.
func (t SmokeTest) checkAttestation(a sandbox.Attestation, info sandbox.Info, took time.Duration, notes []string) Finding {
	backend := a.Backend
	if a.Isolation == sandbox.IsolationProcess {
		backend += " without namespaces"
	}
	detail := fmt.Sprintf("%s in %s, image %s, %s; commands are %s, seccomp %s, %s", backend, took.Round(10*time.Millisecond), a.Image,
		a.WorkspaceMode, a.User, a.Seccomp, describeLimits(a.Limits))
	detail = strings.Join(append([]string{detail}, notes...), "; ")
	f := Finding{Check: checkStart, Result: OK, Detail: detail}
	lost := slices.DeleteFunc(slices.Clone(a.Lost), func(text string) bool { return slices.Contains(info.Lost, text) })
	if t.RefuseLost && len(a.Lost) > 0 {
		lost = a.Lost
		f.Result = Failed
		f.Fault = FaultSandbox
		f.Hint = "refuse_lost is set, so nothing runs: choose another backend, fix the losses, or remove refuse_lost."
	}
	if len(a.Localhost) == 0 && f.Result == OK {
		f.Result = Warning
		f.Detail += "; the name localhost has no address inside, so programs can't use it to reach their own servers"
		f.Hint = "Put an /etc/hosts with the line \"127.0.0.1 localhost\" into the image."
	}
	if len(lost) > 0 {
		f.Detail += "; not protected here: " + strings.Join(lost, " ")
	}
	return f
}

func describeLimits(l sandbox.AttestedLimits) string {
	memory := "memory without a limit"
	if l.MemoryBytes > 0 {
		memory = limits.FormatSize(l.MemoryBytes) + " of memory"
	}
	processes := "processes without a limit"
	if l.PIDs > 0 {
		processes = fmt.Sprintf("%d processes", l.PIDs)
	}
	return memory + ", " + processes
}

// warnOfFileSystem turns a successful start into a warning if it was on another
// file system than the workspace's: mapped owners and mounts depend on the file
// system.
func warnOfFileSystem(started Finding, trial, workspace string) Finding {
	if started.Result != OK || sameFileSystem(trial, workspace) {
		return started
	}
	started.Result = Warning
	started.Detail += fmt.Sprintf("; tried in %s, which is on another file system than this directory: here, commands may run as another user, and protections may be missing", filepath.Dir(trial))
	started.Hint = "To try it on this file system, set TMPDIR to a directory on it."
	return started
}

// testListener is a socket of this process that sandboxes must not reach.
type testListener struct {
	name     string // for people
	target   wire.Target
	listener net.Listener
}

// openListeners listens where no command may connect: on the loopback
// interface, on this machine's other addresses, and at an abstract socket.
func openListeners(ctx context.Context) []testListener {
	var all []testListener
	listen := func(network, address, name string, target func(net.Addr) wire.Target) {
		l, err := (&net.ListenConfig{}).Listen(ctx, network, address)
		if err != nil {
			return // nothing to reach there
		}
		all = append(all, testListener{name, target(l.Addr()), l})
	}
	tcp := func(a net.Addr) wire.Target {
		to := a.(*net.TCPAddr).AddrPort()
		return wire.Target{IP: to.Addr().Unmap().AsSlice(), Port: int(to.Port())}
	}
	for _, address := range listAddresses() {
		listen("tcp", netip.AddrPortFrom(address, 0).String(), address.String(), tcp)
	}
	socket := fmt.Sprintf("caisson-doctor-%d", os.Getpid())
	listen("unix", "@"+socket, "an abstract socket", func(net.Addr) wire.Target { return wire.Target{Abstract: socket} })
	return all
}

// checkEgress checks that the proxy, which allows nothing here, is the only way
// out of the sandbox. It returns the finding about the network.
func checkEgress(ctx context.Context, box sandbox.Sandbox, f Finding) Finding {
	budget, err := limits.NewEgress(limits.DefaultCommandEgressBudget())
	if err == nil {
		err = tryEgress(ctx, box, budget)
	}
	if err != nil {
		f = failed(checkNetwork, err)
		f.Fault, f.Advice = FaultSandbox, AdviseOtherBackend
		return f
	}
	f.Detail += "; the commands' proxy refuses what no rule allows, and is the only way out"
	return f
}

func tryEgress(ctx context.Context, box sandbox.Sandbox, budget *limits.Egress) error {
	proxy, err := egress.New(egress.Options{Budget: budget})
	if err != nil {
		return err
	}
	defer proxy.Close()
	server, ok := box.(sandbox.EgressServer)
	if !ok {
		return fmt.Errorf("%w: the sandbox has no network for commands", sandbox.ErrUnsupported)
	}
	server.Serve(proxy)
	defer server.Serve(nil)
	return network.Check(ctx, box)
}

// maxAddresses bounds how many of the machine's addresses are tried: each takes
// a second if packets vanish.
const maxAddresses = 6

// listAddresses returns the loopback addresses and the machine's own, without
// link-local ones.
func listAddresses() []netip.Addr {
	found := []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}
	own, err := net.InterfaceAddrs()
	if err != nil {
		return found
	}
	for _, a := range own {
		prefix, err := netip.ParsePrefix(a.String())
		if ip := prefix.Addr(); err == nil && ip.IsGlobalUnicast() && len(found) < maxAddresses {
			found = append(found, ip)
		}
	}
	return found
}

// answers reports whether the listener can be reached from here. If not, it
// proves nothing about the sandbox.
func (l testListener) answers(ctx context.Context) bool {
	ctx, cancel := context.WithTimeoutCause(ctx, time.Second, errors.New("it does not answer"))
	defer cancel()
	addr := l.listener.Addr()
	conn, err := (&net.Dialer{}).DialContext(ctx, addr.Network(), addr.String())
	if err != nil {
		return false
	}
	return conn.Close() == nil
}

// checkReach checks that a command in the sandbox does not reach listeners that
// answer outside.
func checkReach(ctx context.Context, box sandbox.Sandbox) Finding {
	all := openListeners(ctx)
	defer func() {
		for _, b := range all {
			_ = b.listener.Close() // there are no connections
		}
	}()
	live := slices.DeleteFunc(slices.Clone(all), func(b testListener) bool { return !b.answers(ctx) })
	if len(live) == 0 {
		return Finding{Check: checkNetwork, Result: Warning, Detail: "nothing on this machine answers outside the sandbox either, so this proves nothing", Hint: "Let this process listen on 127.0.0.1."}
	}
	var targets []string
	for _, b := range live {
		targets = append(targets, b.target.String())
	}
	r, err := network.TryReach(ctx, box, false, targets...)
	if err != nil {
		f := failed(checkNetwork, fmt.Errorf("try the network: %w", err))
		f.Fault = FaultSandbox
		return f
	}
	return compareReach(live, r)
}

// compareReach compares the sockets that a command reached with the ones that
// answer.
func compareReach(live []testListener, r wire.Reach) Finding {
	var names, reached, unknown []string
	for _, b := range live {
		switch r.Results[b.target.String()] {
		case "ok":
			reached = append(reached, b.name)
		case "":
			unknown = append(unknown, b.name)
		}
		names = append(names, b.name)
	}
	others := slices.DeleteFunc(slices.Clone(r.Interfaces), func(name string) bool { return name == "lo" })
	f := Finding{Check: checkNetwork, Result: Failed, Fault: FaultSandbox, Advice: AdviseOtherBackend}
	switch {
	case len(reached) > 0:
		f.Detail = "a command in the sandbox reached " + strings.Join(reached, ", ")
	case len(others) > 0:
		f.Detail = "the sandbox has network interfaces besides lo: " + strings.Join(others, ", ")
	case len(unknown) > 0:
		f.Detail = "the command in the sandbox reports nothing about " + strings.Join(unknown, ", ")
	default:
		how := slices.Compact(slices.Sorted(maps.Values(r.Results)))
		f = Finding{Check: checkNetwork, Result: OK, Detail: fmt.Sprintf("blocked: not reached from inside: %s, which all answer outside (%s)", strings.Join(names, ", "), strings.Join(how, ", "))}
	}
	return f
}
