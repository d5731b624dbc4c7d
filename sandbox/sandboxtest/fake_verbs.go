//go:build linux

package sandboxtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
	"github.com/caisson-run/caisson/sandbox/sandboxtest/internal/probing"
)

// fakeKernel is the content of a fake's /proc/version.
const fakeKernel = "Linux version 4.4.0 (a fake of gVisor)"

// runCommand runs the program that the command names, as the probe would.
func (c *fakeCommand) runCommand() sandbox.ExitStatus {
	argv := c.spec.Argv
	probe := c.sb.mountPoint() + "/" + probeName
	switch {
	case argv[0] == "sh" && c.sb.backend.Fault == FaultPrompts:
		return c.hangUntilSignal()
	case argv[0] == "sh":
		return sandbox.ExitStatus{Code: 7} // "read x; exit 7" at the end of the input
	case argv[0] == probe+"-script":
		argv = []string{probe, "facts"}
	case argv[0] == probe+"-setuid", argv[0] == probe+"-caps":
	case argv[0] != probe:
		return notFound(c, argv[0])
	}
	status, err := c.runVerb(argv[1], argv[2:])
	if err != nil {
		fmt.Fprintln(c.stderr, "probe:", err)
		return sandbox.ExitStatus{Code: 1}
	}
	return status
}

func notFound(c *fakeCommand, name string) sandbox.ExitStatus {
	fmt.Fprintf(c.stderr, "%s: cannot be run\n", name)
	rel, inside := strings.CutPrefix(filepath.Clean(name), c.sb.mountPoint())
	if _, err := os.Lstat(filepath.Join(c.sb.spec.Workspace.Path, rel)); inside && err == nil {
		return sandbox.ExitStatus{Code: 126}
	}
	return sandbox.ExitStatus{Code: 127}
}

func (c *fakeCommand) runVerb(verb string, args []string) (sandbox.ExitStatus, error) {
	switch verb {
	case "exit":
		code, err := strconv.Atoi(args[0])
		if c.sb.backend.Fault == FaultShellCodes && code > 128 {
			return sandbox.ExitStatus{Code: -1, Signal: code - 128}, err
		}
		return sandbox.ExitStatus{Code: code}, err
	case "raise":
		sig, err := strconv.Atoi(args[0])
		return sandbox.ExitStatus{Code: -1, Signal: sig}, err
	case "sleep":
		return c.hangUntilSignal(), nil
	case "term-exit":
		code, err := strconv.Atoi(args[0])
		if status := c.hangUntilSignal(); status.Signal != sigTerm {
			return status, err
		}
		return sandbox.ExitStatus{Code: code}, err
	case "term-leave":
		status := c.hangUntilSignal()
		if status.Signal != sigTerm {
			return status, nil
		}
		c.startChild(args[0]).ignoreTerm.Store(false)
		return sandbox.ExitStatus{}, nil
	case "ignore-term":
		c.main.ignoreTerm.Store(true)
		return c.hangUntilSignal(), nil
	case "guard":
		fmt.Fprintln(c.stdout, c.main.pid, sandbox.IdentityHome(c.spec.Identity)+"/secret", 3)
		return c.hangUntilSignal(), nil
	case "serve":
		fmt.Fprintln(c.stdout, c.main.pid, sandbox.IdentityHome(c.spec.Identity)+"/secret", 3)
		defer c.sb.serving.Store(false)
		defer time.AfterFunc(300*time.Millisecond, func() { c.sb.serving.Store(true) }).Stop()
		return c.hangUntilSignal(), nil
	case "request":
		if !c.sb.serving.Load() {
			return sandbox.ExitStatus{Code: 1}, nil
		}
		_, err := io.WriteString(c.stdout, "hello\n")
		return sandbox.ExitStatus{}, err
	case "egress-echo", "egress-first", "egress-hold", "egress-many", "egress-storm":
		return connectFake(c, verb, args)
	case "daemons":
		return c.startDaemons(args)
	case "evade":
		if c.sb.backend.Fault == FaultRootEvades {
			c.sb.addProcess(sandbox.Command{Argv: []string{"daemon", args[0]}}, true)
			return sandbox.ExitStatus{}, nil
		}
		return c.startDaemons([]string{"1", args[0]})
	case "reexec":
		return c.runVerb(args[0], args[1:])
	case "busy":
		n, err := strconv.Atoi(args[0])
		for range n {
			c.startChild(args[1])
		}
		return c.hangUntilSignal(), err
	case "plant":
		if err := c.plantTraces(args[0]); err != nil {
			return sandbox.ExitStatus{}, err
		}
		return c.hangUntilSignal(), nil
	case "hold", "unhold":
		return c.fillPlace(verb, args)
	case "endless":
		return c.writeEndlessly()
	case "close":
		return c.endLate(args)
	case "hold-stdout":
		c.startChild(args[0])
		_, err := io.WriteString(c.stdout, "held\n")
		return sandbox.ExitStatus{}, err
	}
	if text, ok := c.answer(verb, args); ok {
		_, err := io.WriteString(c.stdout, c.sb.backend.Fault.bendAnswer(verb, text))
		return sandbox.ExitStatus{}, err
	}
	if err := c.writeOutput(verb, args); !errors.Is(err, errUnknownVerb) {
		return sandbox.ExitStatus{}, err
	}
	return sandbox.ExitStatus{}, c.touchFiles(verb, args)
}

var errUnknownVerb = errors.New("unknown verb")

// hangUntilSignal reports that it is ready and waits for a signal.
func (c *fakeCommand) hangUntilSignal() sandbox.ExitStatus {
	if c.sb.backend.Fault != FaultNoPartial {
		_, _ = io.WriteString(c.stdout, "ready\n")
	} else if w, ok := c.spec.Stdout.(*signalWriter); ok {
		w.once.Do(func() { close(w.seen) })
	}
	return sandbox.ExitStatus{Code: -1, Signal: <-c.main.signals}
}

func (c *fakeCommand) startChild(mark string) *fakeProcess {
	p := c.sb.addProcess(sandbox.Command{Argv: []string{"daemon", mark}, Identity: c.spec.Identity}, true)
	c.sb.mu.Lock()
	defer c.sb.mu.Unlock()
	c.children = append(c.children, p)
	return p
}

func (c *fakeCommand) startDaemons(args []string) (sandbox.ExitStatus, error) {
	n, err := strconv.Atoi(args[0])
	for range n {
		c.startChild(args[1])
	}
	if len(args) > 2 {
		return c.hangUntilSignal(), err
	}
	return sandbox.ExitStatus{}, err
}

// writeOutput does the verbs that only write.
func (c *fakeCommand) writeOutput(verb string, args []string) error {
	text := ""
	switch verb {
	case "streams":
		for i := range 3 {
			fmt.Fprintf(c.stdout, "o%d", i+1)
			fmt.Fprintf(c.stderr, "e%d", i+1)
		}
	case "bytes":
		for b := range 256 {
			text += string([]byte{byte(b)})
		}
	case "cat":
		if c.spec.Stdin == nil {
			return nil
		}
		_, err := io.Copy(struct{ io.Writer }{c.stdout}, c.spec.Stdin)
		return err
	case "env":
		text = strings.Join(c.spec.Env, "\x00")
	case "cwd":
		rel, err := filepath.Rel(c.sb.spec.Workspace.Path, c.spec.Dir)
		if err != nil {
			return err
		}
		text = filepath.Join(c.sb.mountPoint(), rel)
	case "flood":
		return c.floodOutput(args)
	case "drip":
		return c.dripOutput(args)
	case "facts":
		return json.NewEncoder(c.stdout).Encode(c.ownFacts())
	case "hog":
		c.exceedLimit(limits.KindMemory, c.sb.spec.Resources.MemoryBytes)
	case "fork-bomb", "storm":
		c.exceedLimit(limits.KindPIDs, c.sb.spec.Resources.PIDs)
	default:
		return errUnknownVerb
	}
	_, err := io.WriteString(c.stdout, text)
	return err
}

func (c *fakeCommand) floodOutput(args []string) error {
	out := c.stdout
	if args[0] == "stderr" {
		out = c.stderr
	}
	n, err := strconv.ParseInt(args[1], 10, 64)
	if err != nil {
		return err
	}
	_, err = io.CopyN(struct{ io.Writer }{out}, &probing.Pattern{}, n)
	return err
}

func (s *fakeSandbox) countProcesses(mark string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, p := range s.processes {
		// The process that asks has the mark among its own arguments.
		asks := len(p.argv) > 1 && p.argv[1] == "ps"
		if !p.ended && !asks && slices.Contains(p.argv, mark) {
			n++
		}
	}
	return n
}

func (c *fakeCommand) ownFacts() probing.Facts {
	none := strings.Repeat("0", 16)
	uid, gid, groups := sandbox.CommandUID, sandbox.CommandGID, 0
	if a := c.sb.account; a.UID > 0 && c.sb.backend.Fault != FaultUserDropped {
		uid, gid, groups = a.UID, a.GID, len(a.Groups)
	}
	if n := c.main.identity; n != 0 {
		uid = sandbox.IdentityBase(uid, gid) + n
		gid = uid
		if c.sb.backend.Fault != FaultUserGroups {
			groups = 0
		}
	}
	f := probing.Facts{
		UID: uid, GID: gid, EUID: uid, EGID: gid, Groups: groups,
		CapInh: none, CapPrm: none, CapEff: none, CapBnd: none, CapAmb: none,
		NoNewPrivs: "1", Seccomp: "2", Interfaces: []string{"lo"}, FDs: []int{0, 1, 2}, Hostname: "fake", Localhost: []string{"127.0.0.1"}, Own: []string{"127.0.0.1"},
	}
	if c.sb.spec.User == sandbox.UserRoot {
		f.UID, f.GID, f.EUID, f.EGID = 0, 0, 0, 0
		f.CapPrm = fmt.Sprintf("%016x", wire.RootCapabilities)
		f.CapEff, f.CapBnd = f.CapPrm, f.CapPrm
		if c.sb.backend.Fault == FaultRootCapable {
			f.CapEff = "000001ffffffffff"
		}
	}
	switch fault := c.sb.backend.Fault; {
	case fault == FaultPrivileged, fault == FaultExecGains && slices.Contains(c.spec.Argv, "reexec"):
		f.CapBnd = "00000000a80425fb"
	case fault == FaultDescriptors:
		f.FDs = append(f.FDs, 7)
	case fault == FaultSetuid && strings.HasSuffix(c.spec.Argv[0], "-setuid"):
		f.EUID = 0
	}
	return f
}

// touchFiles does the verbs that touch the workspace.
func (c *fakeCommand) touchFiles(verb string, args []string) error {
	dir, readOnly := c.sb.spec.Workspace.Path, false
	if len(args) > 0 {
		args = slices.Clone(args)
		dir, args[0], readOnly = c.sb.locate(args[0])
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	switch verb {
	case "mkdir":
		err = root.MkdirAll(args[0], 0o755)
	case "symlink":
		if err = root.Symlink(args[0], args[1]); errors.Is(err, os.ErrExist) {
			err = nil
		}
	case "touch":
		if strings.HasPrefix(args[0], sandbox.EgressDir) {
			if c.sb.backend.Fault == FaultEgressWritable {
				return nil
			}
			return syscall.EROFS
		}
		if readOnly || strings.HasPrefix(args[0], ".git/") && c.sb.backend.Fault != FaultUnguarded {
			return syscall.EROFS
		}
		if strings.HasPrefix(args[0], sandbox.IdentityDir) {
			return nil
		}
		if c.main.identity != 0 && c.sb.backend.Fault != FaultForeignFiles {
			return os.ErrPermission
		}
		if err = root.WriteFile(args[0], []byte("x"), 0o644); err == nil {
			err = c.sb.chownPath(dir, args[0])
		}
	case "read":
		var data []byte
		if data, err = c.readFile(root, args[0]); err != nil {
			return err
		}
		_, _ = c.stdout.Write(data)
	case "grep-files":
		for _, path := range args[1:] {
			if data, readErr := root.ReadFile(path); readErr == nil && strings.Contains(string(data), args[0]) {
				fmt.Fprintln(c.stdout, path)
			}
		}
		_, err = io.WriteString(c.stdout, c.sb.backend.Fault.bendAnswer(verb, ""))
	case "stat", "absent":
	default:
		err = errUnknownVerb
	}
	return err
}

// Ping answers as long as the sandbox runs.
func (s *fakeSandbox) Ping(context.Context) error {
	if err := s.Err(); err != nil {
		return err
	}
	return s.life.Require("ping", sandbox.StateRunning)
}
