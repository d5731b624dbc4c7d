package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
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

	"github.com/caisson-run/caisson/cmd/caisson/internal/ui"
	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/sessiondir"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
	"github.com/caisson-run/caisson/sandbox/overlay"
)

const (
	// trialTime bounds the sandbox that the doctor starts: a start that has to
	// wait for others is no fault of the machine.
	trialTime = 2 * time.Minute
	// reachTime bounds what the command in it takes: one second a target.
	reachTime = 20 * time.Second
)

// The checks of a sandbox that is started.
const (
	checkTrial   = "sandbox start"
	checkNetwork = "network"
)

// trial starts a sandbox as a run would, on an empty folder, and shows from
// inside that nothing is reached. Whatever it started is gone afterwards.
func (s *setup) trial(ctx context.Context, image finding) []finding {
	skip := func(why string) []finding {
		return []finding{{Check: checkTrial, Result: resultAbsent, Detail: why}, {Check: checkNetwork, Result: resultAbsent, Detail: why}}
	}
	ref, err := reference(*s.conf.Image)
	if err != nil || image.Result != resultOK && ref.Scheme != images.SchemeHost {
		return skip("not tried: the image is not here, see above")
	}
	if ref.Scheme == images.SchemeBuild {
		return skip("not tried: the image would be built first")
	}
	ctx, cancel := context.WithTimeoutCause(ctx, trialTime, fmt.Errorf("%w: no sandbox ran within %s", sandbox.ErrUnavailable, trialTime))
	defer cancel()
	var notes []string
	backend, _, err := s.backends.choose(ctx, func(note string) { notes = append(notes, note) })
	if err != nil {
		return skip("not tried: no backend can be used, see above")
	}
	box, took, undo, err := s.startTrial(ctx, backend, ref)
	if err != nil {
		f := failed(checkTrial, err)
		f.status = max(f.status, runner.ExitSandboxStart)
		return append([]finding{f}, skip("not tried: no sandbox could be started")[1])
	}
	info, err := check(ctx, backend, autoTime)
	if err != nil {
		notes = append(notes, err.Error())
	}
	attestation := box.Attestation()
	started := warnOfFileSystem(s.attested(attestation, info, took, notes), attestation.Workspace, ".")
	network := reaches(ctx, box)
	if err := undo(); err != nil {
		started = finding{
			Check: checkTrial, Result: resultFailed, status: runner.ExitSandboxStart,
			Detail: "the sandbox can't be removed: " + err.Error(), Mend: "caisson sandbox gc removes what is left once this caisson has ended.",
		}
	}
	return []finding{started, network}
}

// startTrial makes the sandbox; undo ends it and removes what was made for it.
func (s *setup) startTrial(ctx context.Context, backend sandbox.Backend, ref images.Reference) (box sandbox.Sandbox, took time.Duration, undo func() error, err error) {
	var undos []func() error
	all := func() error {
		var errs []error
		for _, f := range slices.Backward(undos) {
			errs = append(errs, f())
		}
		return errors.Join(errs...)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, all())
		}
	}()
	resources, err := s.conf.SandboxResources()
	if err != nil {
		return nil, 0, nil, err
	}
	folder, err := sessiondir.Create(s.environ.stateDir(), nil)
	if err != nil {
		return nil, 0, nil, err
	}
	undos = append(undos, folder.Close)
	// The state folder itself is refused as a workspace.
	path, err := makeTrialWorkspace(".", os.TempDir(), filepath.Dir(s.environ.stateDir()), "..")
	if path != "" {
		undos = append(undos, func() error { return os.RemoveAll(path) })
	}
	if err != nil {
		return nil, 0, nil, fmt.Errorf("make a workspace: %w", err)
	}
	dir, err := os.Open(path)
	if err != nil {
		return nil, 0, nil, fmt.Errorf("open the workspace: %w", err)
	}
	undos = append(undos, dir.Close)
	spec := sandbox.Spec{
		Session: folder.Session, Image: ref, Git: sandbox.GitMode(*s.conf.Git), Resources: resources, Dir: filepath.Join(folder.Dir, "sandbox"),
		Workspace: sandbox.Workspace{Path: path, Dir: dir, Mode: sandbox.WorkspaceMode(*s.conf.Mode)}, CallerOwnsFiles: true,
	}
	if spec.Workspace.Mode == sandbox.ModeOverlay {
		layers, err := overlay.Create(filepath.Join(folder.Dir, "overlay"), overlay.CreateOptions{Session: folder.Session, Path: path, Workspace: dir})
		if err != nil {
			return nil, 0, nil, fmt.Errorf("%w: overlay workspaces can't be had here: %w", sandbox.ErrUnsupported, err)
		}
		undos = append(undos, func() error {
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
	undos = append(undos, func() error { return box.Destroy(context.WithoutCancel(ctx)) })
	return box, took, all, nil
}

// makeTrialWorkspace makes an empty directory that is as much like the
// workspace as can be: in one of the places that is on the same file system, if
// any, and of the same owner, where Caisson is root. What can be mapped and
// mounted depends on both.
func makeTrialWorkspace(workspace string, places ...string) (path string, err error) {
	slices.SortStableFunc(places, func(a, b string) int {
		return cmp.Compare(strangeness(a, workspace), strangeness(b, workspace))
	})
	var errs []error
	for _, place := range places {
		place, err = filepath.Abs(place)
		if err == nil {
			path, err = os.MkdirTemp(place, "caisson-doctor-")
		}
		if err == nil {
			return path, takeOwner(path, workspace)
		}
		errs = append(errs, err)
	}
	return "", errors.Join(errs...)
}

// strangeness is 0 for a place on the workspace's file system, otherwise 1.
func strangeness(place, workspace string) int {
	if sameFileSystem(place, workspace) {
		return 0
	}
	return 1
}

// attested says what the sandbox is, as it was read back. What the backend said
// already that it lacks is not said again.
func (s *setup) attested(a sandbox.Attestation, info sandbox.Info, took time.Duration, notes []string) finding {
	memory := "memory without a limit"
	if a.Limits.MemoryBytes > 0 {
		memory = ui.FormatSize(a.Limits.MemoryBytes) + " of memory"
	}
	processes := "processes without a limit"
	if a.Limits.PIDs > 0 {
		processes = fmt.Sprintf("%d processes", a.Limits.PIDs)
	}
	detail := fmt.Sprintf("%s in %s, image %s, %s; commands are %s, seccomp %s, %s, %s", a.Backend, took.Round(10*time.Millisecond), a.Image,
		a.WorkspaceMode, a.User, a.Seccomp, memory, processes)
	detail = strings.Join(append([]string{detail}, notes...), "; ")
	f := finding{Check: checkTrial, Result: resultOK, Detail: detail}
	lost := slices.DeleteFunc(slices.Clone(a.Lost), func(text string) bool { return slices.Contains(info.Lost, text) })
	if *s.conf.File.RefuseLost && len(a.Lost) > 0 {
		lost, f.Result, f.status = a.Lost, resultFailed, runner.ExitSandboxStart
		f.Mend = "refuse_lost is set, so nothing runs: choose another backend, mend what is lost, or drop refuse_lost."
	}
	if len(lost) > 0 {
		f.Detail += "; not protected here: " + strings.Join(lost, " ")
	}
	return f
}

// warnOfFileSystem makes a warning of a start that succeeded on another file system
// than the workspace's: which owners can be mapped and what can be mounted depends
// on the file system.
func warnOfFileSystem(started finding, trial, workspace string) finding {
	if started.Result != resultOK || sameFileSystem(trial, workspace) {
		return started
	}
	started.Result = resultWarning
	started.Detail += fmt.Sprintf("; tried in %s, on another file system than this directory: commands here may have another user, and protections may be missing", filepath.Dir(trial))
	started.Mend = "To try it on this file system, set TMPDIR to a directory on it."
	return started
}

// bait is a socket of this process that answers on the machine.
type bait struct {
	name     string // for people
	target   wire.Target
	listener net.Listener
}

// baits listens where a command must not get to: on the loopback interface, on
// this machine's other addresses, and at an abstract socket.
func baits(ctx context.Context) []bait {
	var all []bait
	listen := func(network, address, name string, target func(net.Addr) wire.Target) {
		l, err := (&net.ListenConfig{}).Listen(ctx, network, address)
		if err != nil {
			return // an address that can't be listened on is no bait
		}
		all = append(all, bait{name, target(l.Addr()), l})
	}
	tcp := func(a net.Addr) wire.Target {
		to := a.(*net.TCPAddr).AddrPort()
		return wire.Target{IP: to.Addr().Unmap().AsSlice(), Port: int(to.Port())}
	}
	for _, address := range addresses() {
		listen("tcp", netip.AddrPortFrom(address, 0).String(), address.String(), tcp)
	}
	socket := fmt.Sprintf("caisson-doctor-%d", os.Getpid())
	listen("unix", "@"+socket, "an abstract socket", func(net.Addr) wire.Target { return wire.Target{Abstract: socket} })
	return all
}

// maxAddresses bounds how many of the machine's addresses are tried: one a
// second where packets vanish.
const maxAddresses = 6

// addresses are the loopback addresses and the machine's own, without those
// that are of one link only.
func addresses() []netip.Addr {
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

// answers says whether the bait is reached from here: one that is not shows
// nothing.
func (b bait) answers(ctx context.Context) bool {
	ctx, cancel := context.WithTimeoutCause(ctx, time.Second, errors.New("it does not answer"))
	defer cancel()
	addr := b.listener.Addr()
	conn, err := (&net.Dialer{}).DialContext(ctx, addr.Network(), addr.String())
	if err != nil {
		return false
	}
	return conn.Close() == nil
}

// reaches lets a command in the sandbox try what answers outside of it.
func reaches(ctx context.Context, box sandbox.Sandbox) finding {
	all := baits(ctx)
	defer func() {
		for _, b := range all {
			b.listener.Close() //nolint:errcheck // nobody is connected
		}
	}()
	live := slices.DeleteFunc(slices.Clone(all), func(b bait) bool { return !b.answers(ctx) })
	if len(live) == 0 {
		return finding{Check: checkNetwork, Result: resultWarning, Detail: "nothing on this machine answers outside of the sandbox either, so that nothing is shown", Mend: "Let this process listen on 127.0.0.1."}
	}
	argv := []string{sandbox.GuestPath, wire.ReachWord}
	for _, b := range live {
		argv = append(argv, b.target.String())
	}
	r, err := tryReach(ctx, box, argv)
	if err != nil {
		f := failed(checkNetwork, err)
		f.status = runner.ExitSandboxStart
		return f
	}
	return judge(live, r)
}

// tryReach runs the guest's binary as a command.
func tryReach(ctx context.Context, box sandbox.Sandbox, argv []string) (wire.Reach, error) {
	var out, said bytes.Buffer
	var r wire.Reach
	p, err := box.Start(ctx, sandbox.Command{Argv: argv, Stdout: &out, Stderr: &said, Timeout: reachTime})
	if err != nil {
		return r, fmt.Errorf("try the network: %w", err)
	}
	exit, err := p.Wait()
	if err != nil {
		return r, fmt.Errorf("try the network: %w", err)
	}
	if err := json.Unmarshal(out.Bytes(), &r); err != nil || !exit.Status.Success() {
		return r, fmt.Errorf("try the network: %s, which said %q", exit.Status, said.String())
	}
	return r, nil
}

// judge compares what a command reached with what answers.
func judge(live []bait, r wire.Reach) finding {
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
	f := finding{Check: checkNetwork, Result: resultFailed, status: runner.ExitSandboxStart, Mend: "Don't run anything on this backend here: choose another with --backend, and report this."}
	switch {
	case len(reached) > 0:
		f.Detail = "a command in the sandbox reached " + strings.Join(reached, ", ")
	case len(others) > 0:
		f.Detail = "the sandbox has network interfaces besides lo: " + strings.Join(others, ", ")
	case len(unknown) > 0:
		f.Detail = "the command in the sandbox says nothing of " + strings.Join(unknown, ", ")
	default:
		how := slices.Compact(slices.Sorted(maps.Values(r.Results)))
		f = finding{Check: checkNetwork, Result: resultOK, Detail: fmt.Sprintf("blocked: not reached from inside: %s, which all answer outside (%s)", strings.Join(names, ", "), strings.Join(how, ", "))}
	}
	return f
}
