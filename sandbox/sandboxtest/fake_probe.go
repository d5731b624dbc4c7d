//go:build linux

package sandboxtest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/internal/harden"
)

// answer returns the right answer of the verbs that only report something.
func (c *fakeCommand) answer(verb string, args []string) (string, bool) {
	r := c.sb.spec.Resources
	switch verb {
	case "root-works":
		return strings.Join(rootWorks(Target{}), "\n") + "\n", true
	case "orphans", "attack-guest", "attack-threads", "chown-all", "dial", "grep-environ", "exist", "connect":
		return "", true
	case "syscalls":
		return c.refuseSyscalls(), true
	case "set-id":
		return c.setID(), true
	case "zombies":
		return "0\n", true
	case "ps":
		return fmt.Sprintln(c.sb.countProcesses(args[0])), true
	case "writable":
		return listWritable(c), true
	case "scar":
		return c.sb.backend.scarRoot(), true
	case "scars":
		return c.sb.backend.listScars(c.sb), true
	case "open-files":
		return fmt.Sprintln(r.OpenFiles - 3), true
	case "fill":
		return fmt.Sprintln(r.TmpBytes, "ENOSPC"), true
	case "fill-files":
		return "2048 ENOSPC\n", true
	case "egress-lookup":
		return lookUpFake(c, args[0]), true
	case "attempt":
		return "EPERM", true
	case "egress-bind":
		return args[len(args)-1] + " 0\n", true
	case "processors":
		return fmt.Sprintln(max(1, r.MilliCPUs/1000)), true
	case "hold-files", "fork-count":
		return c.useUp(verb), true
	case "kernel-files":
		return "control\n", true
	case "find-writable":
		return "/tmp\n/home/agent\n/dev/shm\n", true
	case "terminal":
		return "leads its session\n", true
	case "overwrite":
		return "rewritable\n", true
	case "replace":
		return "replaceable\n", true
	case "stop-all":
		c.sb.stopped.Store(true)
		return "stopped\n", true
	case "find":
		return c.findTraces(args[0]), true
	case "reach":
		return c.reachProcess(args[0]), true
	case "args":
		if c.sb.backend.Fault == FaultQuoting {
			args = strings.Fields(strings.Join(args, " "))
		}
		return strings.Join(args, "\x00"), true
	}
	return "", false
}

// reachProcess returns what the command reaches of a process, which is everything
// or nothing.
func (c *fakeCommand) reachProcess(pid string) string {
	n, err := strconv.Atoi(pid)
	if err != nil {
		return err.Error()
	}
	c.sb.mu.Lock()
	defer c.sb.mu.Unlock()
	if c.sb.processes[n-1].identity != c.main.identity {
		return ""
	}
	c.sb.processes[n-1].sendSignal(sigTerm)
	return strings.Join(ownReach, "\n")
}

// refuseSyscalls refuses every attempt of the probe but the controls.
func (c *fakeCommand) refuseSyscalls() string {
	names, err := exec.Command(filepath.Join(c.sb.spec.Workspace.Path, probeName), "names").Output()
	if err != nil {
		return err.Error()
	}
	found := map[string]string{}
	for name := range strings.Lines(string(names)) {
		name = strings.TrimSpace(name)
		found[name] = "EPERM"
		if strings.HasPrefix(name, "control:") || name == "bpf" && c.sb.backend.Fault == FaultSyscall {
			found[name] = "allowed"
		}
	}
	text, err := json.Marshal(found)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// setID returns the right answer to each attempt of the probe.
func (c *fakeCommand) setID() string {
	dir, err := os.MkdirTemp(c.sb.spec.Dir, "set-id-")
	if err != nil {
		return err.Error()
	}
	defer os.RemoveAll(dir)
	out, err := exec.Command(filepath.Join(c.sb.spec.Workspace.Path, probeName), "set-id", filepath.Join(dir, "x")).Output()
	if err != nil || c.sb.backend.Fault == FaultSetIDFile {
		return string(out)
	}
	found, err := parseAttempts(string(out), nil)
	if err != nil {
		return err.Error()
	}
	for name, want := range setIDAnswers(found) {
		found[name] = want[0]
	}
	text, err := json.Marshal(found)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// useUp answers verbs that use something up and release it.
func (c *fakeCommand) useUp(verb string) string {
	c.sb.mu.Lock()
	defer c.sb.mu.Unlock()
	c.sb.counted++
	again := c.sb.counted > 1
	switch {
	case verb == "hold-files" && again && c.sb.backend.Fault == FaultFilesLost:
		return "ENFILE\n"
	case verb == "hold-files":
		return "EMFILE\n"
	case again && c.sb.backend.Fault == FaultForksLost:
		return "3\n"
	}
	return "50\n"
}

// readFile reads a file of the workspace, or one of the two of /proc that are
// asked for.
func (c *fakeCommand) readFile(root *os.Root, path string) ([]byte, error) {
	fault := c.sb.backend.Fault
	switch path {
	case "/proc/version":
		return []byte(fault.bendAnswer("version", fakeKernel)), nil
	case "/proc/self/mountinfo":
		return []byte(fault.bendAnswer("mountinfo", mountTable(c))), nil
	}
	if name, ok := strings.CutPrefix(path, sandbox.EgressDir+"/"); ok {
		return readRoots(c, name)
	}
	if path == "image-group" && fault != FaultGroupFiles {
		return nil, os.ErrPermission
	}
	data, err := root.ReadFile(path)
	if fault == FaultStaleFiles {
		data = []byte("first")
	}
	return data, err
}

// mountTable returns the table of mounts that a container should have.
func mountTable(c *fakeCommand) string {
	var text strings.Builder
	text.WriteString(`1 0 0:1 / / ro - overlay none ro
2 1 0:2 / /proc rw,nosuid,nodev,noexec - proc none rw
3 1 0:3 / /dev rw,nosuid - tmpfs none rw
4 1 0:4 / /sys ro,nosuid,nodev,noexec - sysfs none ro
5 1 0:5 /w /workspace rw,nosuid,nodev - ext4 none rw
6 1 0:6 /g /.caisson/guest ro,nosuid,nodev - ext4 none rw
7 1 0:7 /h /home/agent rw,nosuid,nodev - ext4 none rw
`)
	for i, t := range harden.TmpfsMounts(c.sb.spec.Resources, sandbox.CommandUID, sandbox.CommandGID) {
		fmt.Fprintf(&text, "%d 1 0:%d / %s %s - tmpfs none size=%dk\n", 10+i, 10+i, t.Path, strings.Join(t.Options()[:4], ","), t.Bytes>>10)
	}
	return text.String()
}

// plantTraces records a word, leaves the file that the workspace shows, and
// returns what a probe would have left.
func (c *fakeCommand) plantTraces(word string) error {
	b := c.sb.backend
	b.mu.Lock()
	if b.planted == nil {
		b.planted = map[string]string{}
	}
	b.planted[word] = c.sb.spec.Session
	b.mu.Unlock()
	if err := os.WriteFile(filepath.Join(c.sb.spec.Workspace.Path, word), nil, 0o600); err != nil {
		return err
	}
	for i := range 8 {
		fmt.Fprintln(c.stdout, "trace", i)
	}
	return nil
}

// findTraces returns the traces of a word: everything in the same session,
// elsewhere only the file of the same workspace.
func (c *fakeCommand) findTraces(word string) string {
	b := c.sb.backend
	b.mu.Lock()
	session := b.planted[word]
	lost := session != "" && b.alive[session] == nil
	b.mu.Unlock()
	text := ""
	if session == c.sb.spec.Session {
		for i := range 8 {
			text += fmt.Sprintln("trace", i)
		}
		return text
	}
	if _, err := os.Lstat(filepath.Join(c.sb.spec.Workspace.Path, word)); err == nil {
		text = "file in /workspace\n"
	}
	if b.Fault == FaultStrangers && !lost || b.Fault == FaultStale && lost {
		text += "file in /tmp\n"
	}
	return text
}

// dripOutput writes single bytes to both streams.
func (c *fakeCommand) dripOutput(args []string) error {
	n, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	for i := range n {
		if c.sb.backend.Fault == FaultSmallWrites && i%1000 == 999 {
			continue
		}
		b := []byte{'a' + byte(i%26)}
		for _, w := range []io.Writer{c.stdout, c.stderr} {
			if _, err := w.Write(b); err != nil {
				return err
			}
		}
	}
	return nil
}

// fillPlace fills a place, or frees it, and fails if the arguments ask for it.
func (c *fakeCommand) fillPlace(verb string, args []string) (sandbox.ExitStatus, error) {
	fault, status := c.sb.backend.Fault, sandbox.ExitStatus{}
	if slices.Contains(args, "fail") {
		status.Code = 1
	}
	if verb == "hold" && status.Code != 0 && fault != FaultFullUnreported {
		c.exit.Full = []string{args[0]}
	}
	_, err := io.WriteString(c.stdout, fault.bendAnswer(verb, "ENOSPC\n"))
	return status, err
}

// writeEndlessly writes until a signal comes.
func (c *fakeCommand) writeEndlessly() (sandbox.ExitStatus, error) {
	piece := make([]byte, 64<<10)
	var hoard [][]byte
	// Twice what may be kept, however slow the machine is.
	for c.sb.backend.Fault == FaultHoards && len(hoard)*len(piece) < 2*flatBytes {
		hoard = append(hoard, append([]byte{}, piece...))
	}
	for {
		select {
		case sig := <-c.main.signals:
			if len(hoard) > 0 && hoard[0][0] != 0 {
				return sandbox.ExitStatus{}, errors.New("the hoard is not what was written")
			}
			return sandbox.ExitStatus{Code: -1, Signal: sig}, nil
		default:
		}
		for _, w := range []io.Writer{c.stdout, c.stderr} {
			if _, err := w.Write(piece); err != nil {
				return sandbox.ExitStatus{}, err
			}
		}
	}
}

// endLate ends 300 ms after its output.
func (c *fakeCommand) endLate(args []string) (sandbox.ExitStatus, error) {
	if c.sb.backend.Fault == FaultEOFIsEnd {
		return sandbox.ExitStatus{}, nil
	}
	time.Sleep(300 * time.Millisecond)
	code, err := strconv.Atoi(args[0])
	return sandbox.ExitStatus{Code: code}, err
}

// exceedLimit ends the sandbox as gVisor does at a limit of its own.
func (c *fakeCommand) exceedLimit(kind limits.Kind, limit int64) {
	if own := int64(c.spec.MaxTasks); kind == limits.KindPIDs && own > 0 && own < limit && c.sb.backend.Fault != FaultNoBudget {
		c.exit.Exceeded = &limits.ExceededError{Kind: kind, Limit: own, Used: own + 1}
		return
	}
	c.sb.stop(errors.Join(sandbox.ErrLost, &limits.ExceededError{Kind: kind, Limit: limit, Used: limit}))
}

// Fault is one deliberate defect of a [Fake].
type Fault string

// The faults. The zero value is none.
const (
	FaultMergedStreams   Fault = "stderr goes to stdout"
	FaultShellCodes      Fault = "codes over 128 become signals"
	FaultNoDaemons       Fault = "daemons survive a kill"
	FaultKillAtOnce      Fault = "SIGKILL without SIGTERM"
	FaultHostEnvironment Fault = "the host's environment is inherited"
	FaultNoVariables     Fault = "the session's variables are dropped"
	FaultLostBytes       Fault = "the count stops at the cut"
	FaultOverlappingTail Fault = "the tail repeats live bytes"
	FaultRootOwner       Fault = "new files belong to root"
	FaultPrivileged      Fault = "commands keep capabilities"
	FaultLies            Fault = "the attestation repeats the request"
	FaultLossIsExit      Fault = "a lost container is exit code 137"
	FaultLeaks           Fault = "destroy leaves a container"
	FaultAnyDir          Fault = "the working directory is not checked"
	FaultLinkedDir       Fault = "a working directory without symlinks has some"
	FaultNoPartial       Fault = "a cancelled command loses its output"
	FaultDeadlock        Fault = "one stalled reader stops all"

	FaultExecGains      Fault = "an exec gives capabilities back"
	FaultSetuid         Fault = "setuid programs work"
	FaultDescriptors    Fault = "a descriptor of the host's is inherited"
	FaultRewritable     Fault = "the guest's program can be written"
	FaultHostSocket     Fault = "a socket of the host's can be reached"
	FaultSyscall        Fault = "one forbidden call is let through"
	FaultKernelFile     Fault = "a file of the kernel can be written"
	FaultMount          Fault = "a directory of the host's is mounted too"
	FaultUnbounded      Fault = "a tmpfs has no size"
	FaultOtherKernel    Fault = "another kernel than was asked for"
	FaultTerminal       Fault = "commands have a terminal"
	FaultStrangers      Fault = "sessions share /tmp"
	FaultStale          Fault = "a container is used again"
	FaultReplace        Fault = "directories of the root can be replaced"
	FaultQuoting        Fault = "arguments go through a shell"
	FaultSmallWrites    Fault = "single bytes are lost"
	FaultHoards         Fault = "all output is kept in memory"
	FaultNoTimeout      Fault = "timeouts are not kept"
	FaultEOFIsEnd       Fault = "the end of output is taken for the command's"
	FaultPrompts        Fault = "commands wait for a terminal's answer"
	FaultFilesLost      Fault = "descriptors are not given back"
	FaultForksLost      Fault = "processes are not given back"
	FaultUnheldMemory   Fault = "tmpfs holds more than the memory limit"
	FaultStoppedLeft    Fault = "stopped processes are left"
	FaultPausedResult   Fault = "a paused sandbox gives results"
	FaultHostFile       Fault = "a file beside the workspace can be read"
	FaultGuestOpen      Fault = "the guest's memory can be read"
	FaultNetwork        Fault = "there is a network"
	FaultWritableRoot   Fault = "the root is writable"
	FaultZombies        Fault = "orphans are not reaped"
	FaultCommonCause    Fault = "a cancelled start has no cause"
	FaultAnySpec        Fault = "bad specs are taken"
	FaultMountWritable  Fault = "read-only mounts can be written"
	FaultScratchLeft    Fault = "scratch directories are left"
	FaultSweepsLiving   Fault = "sweep says that it removed a living session"
	FaultFullUnreported Fault = "a full place is not reported"
	FaultProcessors     Fault = "programs see the machine's processors"
	FaultOverlay        Fault = "an overlay's changes go to the workspace"
	FaultCopyIsNone     Fault = "a copy is the workspace itself"
	FaultCopyKeeps      Fault = "a copy's deletions are not collected"
	FaultCopyModes      Fault = "a copy's modes are not collected"
	FaultCopyFollows    Fault = "a copy's symlinks are followed"
	FaultCopyOpaque     Fault = "a copy's directories hide those of the workspace"
	FaultCopyStale      Fault = "a copy's files are collected without content"
	FaultTarget         Fault = "the workspace is where it always is"
	FaultUnguarded      Fault = "a repository can be written"
	FaultStaleFiles     Fault = "the host's writes are not seen"
	FaultAnyPatch       Fault = "a patch takes the first of several matches"
	FaultManyFiles      Fault = "open files are not limited"
	FaultOrphansWait    Fault = "what a parent leaves at SIGTERM waits for SIGKILL"
	FaultSetIDFile      Fault = "commands make set-user-ID files"
	FaultRootKept       Fault = "the layer of a root is used again"
	FaultRootClosed     Fault = "a root stays read-only"
	FaultRootCapable    Fault = "root inside has all capabilities"
	FaultRootEvades     Fault = "what a root command hides outlives it"
	FaultUserDropped    Fault = "commands are not the image's user"
	FaultUserGroups     Fault = "another identity has the groups of the image's user"
	FaultUserHome       Fault = "the image's user has another home"
	FaultGroupFiles     Fault = "a group of the image opens files of the host's"
	FaultAnyUser        Fault = "any USER is taken"
	FaultRootOutside    Fault = "root inside is root of the host"
	FaultNoEnd          Fault = "a destroyed sandbox takes commands"
	FaultOneUser        Fault = "all identities are one user"
	FaultOthersLeft     Fault = "daemons of another identity survive a kill"
	FaultForeignFiles   Fault = "another identity creates files in the workspace"
	FaultNoBudget       Fault = "a command's own budget is none"
	FaultAnyIdentity    Fault = "any number is an identity"
	FaultServiceEarly   Fault = "the start does not wait for its service"
	FaultServiceAsAgent Fault = "the service runs as the agent's user"
	FaultEgressAlways   Fault = "there are listeners without a plan"
	FaultEgressUnserved Fault = "connections without a handler are ended"
	FaultEgressOwner    Fault = "all connections are one user's"
	FaultEgressNumber   Fault = "connections belong to no command"
	FaultEgressHalf     Fault = "the end of one direction ends both"
	FaultEgressLies     Fault = "listeners are not attested"
	FaultEgressOutlives Fault = "connections outlive their command"
	FaultEgressAny      Fault = "any number of connections is open"
	FaultEgressPlaces   Fault = "the place of a reset connection is not given back"
	FaultEgressRefuses  Fault = "names that are none are refused"
	FaultEgressAsks     Fault = "the handler is asked for every record"
	FaultEgressTaken    Fault = "a command listens beside the guest"
	FaultEgressDiag     Fault = "commands may ask for the sockets of others"
	FaultEgressRoots    Fault = "certificates are not made known"
	FaultEgressReserved Fault = "commands have the proxy of others"
	FaultEgressWritable Fault = "certificates can be written"
	FaultServiceLeft    Fault = "a sandbox with an unhealthy service is left"
)

// bendAnswer turns the right answer of a verb into the one of a fault.
func (f Fault) bendAnswer(verb, right string) string {
	wrong, ok := bends[f][verb]
	if !ok {
		return right
	}
	return wrong(right)
}

// replaceWith returns a function that replaces any answer; appendText returns
// one that adds to it.
func replaceWith(text string) func(string) string { return func(string) string { return text } }

func appendText(text string) func(string) string {
	return func(right string) string { return right + text }
}

// bends are the faults that show in what a probe tells.
var bends = map[Fault]map[string]func(string) string{
	FaultRewritable:   {"overwrite": appendText("/.caisson/guest\n")},
	FaultHostSocket:   {"connect": appendText("host.sock\n")},
	FaultKernelFile:   {"kernel-files": appendText("write /proc/sys/kernel/core_pattern\n")},
	FaultMount:        {"mountinfo": appendText("99 1 8:1 / /host rw,relatime - ext4 /dev/sda1 rw\n")},
	FaultUnbounded:    {"fill": replaceWith("67108864 none\n")},
	FaultOtherKernel:  {"version": replaceWith("Linux version 2.4.18\n")},
	FaultTerminal:     {"terminal": appendText("controlling terminal\n")},
	FaultReplace:      {"replace": appendText("/dev\n")},
	FaultUnheldMemory: {"hold": replaceWith("none\n")},
	FaultHostFile:     {"grep-files": appendText("/proc/1/root/canary\n")},
	FaultGuestOpen:    {"attack-guest": appendText("/proc/1/mem\n")},
	FaultNetwork:      {"dial": appendText("192.0.2.1:80\n")},
	FaultWritableRoot: {"writable": appendText("/etc\n")},
	FaultZombies:      {"zombies": replaceWith("17\n")},
	FaultProcessors:   {"processors": replaceWith("64\n")},
	FaultEgressDiag:   {"attempt": replaceWith("allowed")},
	FaultEgressTaken:  {"egress-bind": appendText("127.80.0.1:61080 0\n")},
	FaultManyFiles:    {"open-files": replaceWith("1048576\n")},
}
