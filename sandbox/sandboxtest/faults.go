package sandboxtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools/workspace"
)

const (
	serviceRuns      = "a service runs beside commands"
	unhealthyService = "a service that is not healthy ends the start"
	rootCheck        = "root inside is root nowhere else"
	otherIdentity    = "another identity is out of reach"
	furtherMounts    = "further mounts are what was asked for"
	imageUserCheck   = "commands are the image's user"
	imageHomeCheck   = "the image's user has its home"
	otherFiles       = "another identity makes no files in the workspace"
	elsewhere        = "the workspace is where it was asked for"
	writableRoot     = "a writable root is the sandbox's own"
)

// faults returns all faults. Some have state, so each call returns new ones.
func faults() []fault {
	return slices.Concat(streamFaults(), terminalFaults(), commandFaults(), endFaults(), fileFaults(), isolationFaults(), egressFaults(), userFaults(), limitFaults(), lifeFaults())
}

type answers = map[string]func(right string) string

// replaceWith, appendText and replaceMatch return functions that change an
// answer.
func replaceWith(text string) func(string) string { return func(string) string { return text } }

func appendText(text string) func(string) string {
	return func(right string) string { return right + text }
}

func replaceMatch(pattern, text string) func(string) string {
	return func(right string) string { return regexp.MustCompile(pattern).ReplaceAllString(right, text) }
}

func streamFaults() []fault {
	stalled := make(chan struct{}, 1)
	var hoard []byte
	return []fault{
		{
			name:    "stderr goes to stdout",
			checks:  []string{"streams are separate", "10 MiB on both streams", "single bytes on both streams", "missing and unusable programs"},
			command: func(c *sandbox.Command) { c.Stderr = c.Stdout },
		},
		{
			name:    "bytes are taken for text",
			checks:  []string{"bytes are exact"},
			answers: answers{"bytes": func(right string) string { return strings.ToValidUTF8(right, "?") }},
		},
		{name: "stdin ends at once", checks: []string{"stdin and its end"}, command: func(c *sandbox.Command) { c.Stdin = nil }},
		{
			name:   "a command without stdin gets one",
			checks: []string{"no stdin is an empty one"},
			command: func(c *sandbox.Command) {
				if c.Stdin == nil {
					c.Stdin = strings.NewReader("x")
				}
			},
		},
		{
			name:    "the last byte is lost",
			checks:  []string{"the last byte is kept"},
			answers: answers{"flood": func(right string) string { return right[:max(len(right)-1, 0)] }},
		},
		{
			name:   "the count stops at the cut",
			checks: []string{"a flood is counted, hashed and cut"},
			end:    func(_ *faultyProcess, x *sandbox.Exit, _ *error) { x.Stdout.Total = min(x.Stdout.Total, x.Stdout.Live) },
		},
		{
			name:   "the tail repeats live bytes",
			checks: []string{"a flood is counted, hashed and cut"},
			end: func(_ *faultyProcess, x *sandbox.Exit, _ *error) {
				x.Stdout.Tail = append([]byte("x"), x.Stdout.Tail...)
			},
		},
		{
			name:   "one stalled reader stops all",
			checks: []string{"a stalled reader delays no other stream"},
			command: func(c *sandbox.Command) {
				to := c.Stdout
				c.Timeout = time.Second
				c.Stdout = writerFunc(func(p []byte) (int, error) {
					select {
					case stalled <- struct{}{}:
						defer func() { <-stalled }()
						return to.Write(p)
					case <-time.After(3 * time.Second): // the check has failed by now
						return 0, errors.New("another stream is stalled")
					}
				})
			},
		},
		{name: "single bytes are lost", checks: []string{"single bytes on both streams"}, answers: answers{"drip": replaceMatch("z", "")}},
		{
			name:   "all output is kept in memory",
			checks: []string{"an endless flood ends at its timeout, and memory is flat"},
			command: func(c *sandbox.Command) {
				if slices.Contains(c.Argv, "endless") {
					hoard = bytes.Repeat([]byte("x"), 2*flatBytes)
				}
			},
			end: func(*faultyProcess, *sandbox.Exit, *error) { hoard = slices.Delete(hoard, 0, len(hoard)) },
		},
		{
			name:   "the end of output is taken for the command's",
			checks: []string{"closed streams end nothing"},
			end:    succeed("close"),
		},
		{
			name:   "commands wait for a terminal's answer",
			checks: []string{"programs that ask get no answer"},
			end: func(p *faultyProcess, x *sandbox.Exit, _ *error) {
				x.Status.TimedOut = path.Base(p.argv[0]) != probeName
			},
		},
	}
}

func terminalFaults() []fault {
	var names strings.Builder
	for i := range 100 {
		fmt.Fprintf(&names, "/dev/pts/%d\n", i)
	}
	return []fault{
		{
			name:    "commands get no terminal",
			checks:  []string{"a terminal is what was asked for", "keys of a terminal", "jobs of a shell on a terminal", "10 MiB on a terminal", "a terminal can't be typed into from inside"},
			command: func(c *sandbox.Command) { c.Terminal = nil },
		},
		{
			name:   "a terminal keeps its size",
			checks: []string{"a terminal is what was asked for"},
			command: func(c *sandbox.Command) {
				if c.Terminal != nil {
					c.Terminal.Rows++
				}
			},
		},
		answersOf("a byte of a terminal is lost", "flood-terminal", func(right string) string { return right[:max(len(right)-1, 0)] }, "10 MiB on a terminal"),
		answersOf("a terminal can be typed into", "type-inside", replaceWith("ok\r\n"), "a terminal can't be typed into from inside"),
		answersOf("everybody can open a terminal", "exist", appendText(names.String()), "a terminal is closed to other identities"),
	}
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// succeed returns an end function by which a verb always succeeds.
func succeed(verb string) func(p *faultyProcess, x *sandbox.Exit, _ *error) {
	return func(p *faultyProcess, x *sandbox.Exit, _ *error) {
		if p.verb() == verb {
			x.Status = sandbox.ExitStatus{}
		}
	}
}

func commandFaults() []fault {
	var mu sync.Mutex
	last := 0
	return []fault{
		{
			name:   "codes over 128 become signals",
			checks: []string{"exit codes are exact"},
			end: func(_ *faultyProcess, x *sandbox.Exit, _ *error) {
				if code := x.Status.Code; code > 128 {
					x.Status = sandbox.ExitStatus{Code: -1, Signal: code - 128}
				}
			},
		},
		{
			name:   "signals become codes",
			checks: []string{"signals are reported", "a process that ignores SIGTERM is killed"},
			end: func(_ *faultyProcess, x *sandbox.Exit, _ *error) {
				if sig := x.Status.Signal; sig > 0 {
					x.Status.Code = 128 + sig
					x.Status.Signal = 0
				}
			},
		},
		{
			name:   "a command has the status of another one",
			checks: []string{"commands run beside each other"},
			end: func(_ *faultyProcess, x *sandbox.Exit, _ *error) {
				mu.Lock()
				defer mu.Unlock()
				last, x.Status.Code = x.Status.Code, last
			},
		},
		{
			name:   "the host's environment is inherited",
			checks: []string{"environment is what was given", "arguments arrive byte by byte"},
			command: func(c *sandbox.Command) {
				if c.Env != nil {
					c.Env = append(slices.Clone(c.Env), os.Environ()...)
				}
			},
		},
		{name: "the session's variables are dropped", checks: []string{"environment is what was given"}, spec: func(s *sandbox.Spec) { s.Env = nil }},
		{
			name:    "arguments go through a shell",
			checks:  []string{"arguments arrive byte by byte"},
			command: func(c *sandbox.Command) { c.Argv = strings.Fields(strings.Join(c.Argv, " ")) },
		},
		{
			name:    "the working directory is not checked",
			checks:  []string{"working directory", "a working directory can't lead out", "invalid commands are refused", elsewhere},
			command: func(c *sandbox.Command) { c.Dir = "" },
		},
		{
			name:    "a working directory without symlinks has some",
			checks:  []string{"a working directory can't lead out"},
			command: func(c *sandbox.Command) { c.NoLinks = false },
		},
		{
			name:   "errors of a start have no cause",
			checks: []string{"cancel before start", "working directory", "invalid commands are refused", "destroy is idempotent and stops everything"},
			start:  func(err error) error { return errors.New(err.Error()) },
		},
		{
			name:   "any number is an identity",
			checks: []string{"identities out of range are refused"},
			command: func(c *sandbox.Command) {
				if c.Identity < 0 || c.Identity > sandbox.MaxIdentity {
					c.Identity = 0
				}
			},
		},
		{
			name:    "all identities are one user",
			checks:  []string{otherIdentity, otherFiles, imageUserCheck},
			command: func(c *sandbox.Command) { c.Identity = 0 },
		},
	}
}

func endFaults() []fault {
	return []fault{
		{
			name:   "SIGKILL without SIGTERM",
			checks: []string{"SIGTERM comes first", "cancel while it runs", "commands of another identity end"},
			end: func(_ *faultyProcess, x *sandbox.Exit, _ *error) {
				if x.Status.Cancelled {
					x.Status = sandbox.ExitStatus{Code: -1, Signal: 9, Cancelled: true}
				}
			},
		},
		{
			name:   "what a parent leaves at SIGTERM waits for SIGKILL",
			checks: []string{"what a parent leaves at SIGTERM gets one too"},
			end:    func(_ *faultyProcess, x *sandbox.Exit, _ *error) { x.Kill.Killed++ },
		},
		{
			name:   "a cancelled command loses its output",
			checks: []string{"cancel while it runs"},
			command: func(c *sandbox.Command) {
				if w, ok := c.Stdout.(*signalWriter); ok {
					c.Stdout = writerFunc(func(p []byte) (int, error) {
						w.once.Do(func() { close(w.seen) })
						return len(p), nil
					})
				}
			},
		},
		{
			name:   "a cancellation changes a result",
			checks: []string{"cancel after the end changes nothing"},
			end:    func(p *faultyProcess, x *sandbox.Exit, _ *error) { x.Status.Cancelled = p.waited > 1 },
		},
		{
			name: "processes survive their command",
			checks: []string{
				"daemons are found and killed", "nothing on a terminal outlives its command", "a timeout ends everything", "what is left after the end is killed", "cancel right at the start",
				"a grandchild that holds stdout does not hold the command", "cancelling one command spares another", "stopped processes are killed",
				"a process that ignores SIGTERM is killed", "commands of another identity end", rootCheck,
			},
			answers: answers{"ps": replaceMatch("^0\n", "1\n")},
		},
		{
			name:   "timeouts are not kept",
			checks: []string{"a timeout ends everything", "timeouts hold under load"},
			end:    func(_ *faultyProcess, x *sandbox.Exit, _ *error) { x.Status.TimedOut = false },
		},
		{name: "orphans are not reaped", checks: []string{"orphans are reaped"}, answers: answers{"zombies": replaceWith("17\n")}},
		{
			name:   "a lost container is exit code 137",
			checks: []string{"a killed container is lost, never a result", "destroy during commands"},
			end: func(_ *faultyProcess, x *sandbox.Exit, err *error) {
				if *err != nil {
					*err = nil
					x.Status = sandbox.ExitStatus{Code: 137}
				}
			},
		},
		{
			name:   "a paused sandbox gives results",
			checks: []string{"a paused sandbox is lost, not waited for"},
			target: func(t *Target) { t.Pause = func(context.Context, sandbox.Sandbox) error { return nil } },
		},
	}
}

// applies returns a fault of Apply that changes the request.
func applies(name, check string, change func(op *workspace.Op)) fault {
	return fault{name: name, checks: []string{check}, apply: func(ctx context.Context, s *faultySandbox, op workspace.Op) (workspace.Change, error) {
		change(&op)
		return s.Sandbox.Apply(ctx, op)
	}}
}

// applied returns a fault of Apply that changes the workspace afterwards.
func applied(name, check string, change func(path string, content []byte) error) fault {
	return fault{name: name, checks: []string{check}, apply: func(ctx context.Context, s *faultySandbox, op workspace.Op) (workspace.Change, error) {
		c, err := s.Sandbox.Apply(ctx, op)
		if err == nil {
			err = change(filepath.Join(s.spec.Workspace.Path, c.Path), op.Content)
		}
		return c, err
	}}
}

func collects(name string, change func(path string, d fs.DirEntry) error) fault {
	return fault{name: name, checks: []string{copyCheck}, copies: true, collected: change}
}

func mounts(name string, checks []string, change func(m *sandbox.Mount)) fault {
	return fault{name: name, checks: checks, spec: func(s *sandbox.Spec) {
		s.Mounts = slices.Clone(s.Mounts)
		for i := range s.Mounts {
			change(&s.Mounts[i])
		}
	}}
}

func fileFaults() []fault {
	return []fault{
		applies("content is lost", "write creates and overwrites", func(op *workspace.Op) { op.Content = nil }),
		applies("a patch takes the first of several matches", "patch needs one match", func(op *workspace.Op) {
			op.ReplaceAll = op.Kind == workspace.OpPatch
		}),
		applies("directories are deleted with what is in them", "delete, mkdir and rename", func(op *workspace.Op) {
			op.Recursive = op.Kind == workspace.OpDelete
		}),
		applies("paths are cut to the workspace", "no change leaves the workspace", func(op *workspace.Op) {
			op.Path = "." + path.Clean("/"+op.Path)
		}),
		applied("new files belong to root", "files belong to the workspace's owner", func(path string, _ []byte) error { return os.Lchown(path, 0, 0) }),
		applied("an overlay's changes go to the workspace", "an overlay leaves the workspace alone", func(path string, content []byte) error {
			return os.WriteFile(path, content, 0o644)
		}),
		{
			name:    "the host's writes are not seen",
			checks:  []string{"host and sandbox see each other's files", furtherMounts},
			answers: answers{"read": replaceWith("first")},
		},
		{
			name:   "a copy is the workspace itself",
			checks: []string{copyCheck},
			spec: func(s *sandbox.Spec) {
				if w := &s.Workspace; w.Mode == sandbox.ModeCopy {
					*w = sandbox.Workspace{Path: w.Path, Dir: w.Dir, Target: w.Target}
				}
			},
		},
		collects("a copy's deletions are not collected", func(path string, d fs.DirEntry) error {
			if d.Type()&fs.ModeCharDevice != 0 {
				return os.Remove(path)
			}
			return nil
		}),
		collects("a copy's modes are not collected", func(path string, d fs.DirEntry) error {
			if d.IsDir() {
				return os.Chmod(path, 0o755)
			}
			return nil
		}),
		collects("a copy's symlinks are followed", func(path string, d fs.DirEntry) error {
			if d.Type() == fs.ModeSymlink {
				return errors.Join(os.Remove(path), os.WriteFile(path, nil, 0o644))
			}
			return nil
		}),
		collects("a copy's directories hide those of the workspace", func(path string, d fs.DirEntry) error {
			if d.IsDir() {
				return unix.Lsetxattr(path, "user.overlay.opaque", []byte("y"), 0)
			}
			return nil
		}),
		collects("a copy's files are collected without content", func(path string, d fs.DirEntry) error {
			if d.Type().IsRegular() {
				return os.Truncate(path, 0)
			}
			return nil
		}),
		{name: "the workspace is where it always is", checks: []string{elsewhere}, spec: func(s *sandbox.Spec) { s.Workspace.Target = "" }},
		{name: "refused writes succeed", checks: []string{elsewhere, furtherMounts, otherFiles, egressRoots}, end: succeed("touch")},
		mounts("read-only mounts can be written", []string{furtherMounts}, func(m *sandbox.Mount) {
			m.ReadOnly = false
			m.Guarded = false
			m.Repositories = nil
		}),
		mounts("layers of mounts are dropped", []string{"a copy-on-write mount leaves its directory alone"}, func(m *sandbox.Mount) { m.Layers = "" }),
		{
			name:   "further mounts are dropped",
			checks: []string{furtherMounts, "mounts that lead elsewhere are refused"},
			spec:   func(s *sandbox.Spec) { s.Mounts = nil },
		},
	}
}

func answersOf(name, verb string, change func(string) string, checks ...string) fault {
	return fault{name: name, checks: checks, answers: answers{verb: change}}
}

// isolationFaults let a command see more than it should.
func isolationFaults() []fault {
	capable := replaceMatch(`"CapBnd":"\w+"`, `"CapBnd":"00000000a80425fb"`)
	hostIPC, _ := os.Readlink("/proc/self/ns/ipc") // the check fails anyway without it
	return []fault{
		{
			name:    "commands keep capabilities",
			checks:  []string{"commands have no privilege", otherIdentity, imageUserCheck},
			answers: answers{"facts": capable},
		},
		answersOf("an exec gives capabilities back", "reexec", capable, "an exec gains nothing"),
		answersOf("setuid programs work", probeName+"-setuid", replaceMatch(`"EUID":\d+`, `"EUID":0`), "planted privilege gives none"),
		answersOf("a descriptor of the host's is inherited", "facts", replaceMatch(`"FDs":\[0,1,2`, `"FDs":[0,1,2,7`),
			"descriptors are stdin, stdout, stderr", "the host's descriptors stay outside"),
		answersOf("the guest's memory can be read", "attack-guest", appendText("/proc/1/mem\n"), "the guest can't be signalled or read"),
		answersOf("there is a network", "dial", appendText("192.0.2.1:80\n"), "no network"),
		answersOf("the host's environment can be read", "grep-environ", appendText("/proc/1/environ\n"), "nothing of the host's environment"),
		answersOf("a file beside the workspace can be read", "grep-files", appendText("/proc/1/root/canary\n"), "no host file outside the mounts"),
		answersOf("the root is writable", "writable", appendText("/etc\n"), "the root is read-only", writableRoot, imageHomeCheck),
		answersOf("one forbidden call is let through", "syscalls", replaceMatch(`"bpf":"\w+"`, `"bpf":"allowed"`), "forbidden system calls fail"),
		answersOf("a file of the kernel can be written", "kernel-files", appendText("write /proc/sys/kernel/core_pattern\n"), "files of the kernel are closed"),
		answersOf("a directory of the host's is mounted too", "read", appendText("99 1 8:1 / /host rw,relatime - ext4 /dev/sda1 rw\n"), "the mounts are those that were planned"),
		answersOf("a tmpfs has no size", "fill", replaceWith("67108864 none\n"), "every writable place is bounded", "temporary files"),
		answersOf("commands have a terminal", "terminal", appendText("controlling terminal\n"), "there is no terminal"),
		answersOf("the host's IPC namespace is shared", "namespaces", replaceMatch("ipc:.*", hostIPC), "namespaces are not the host's"),
		answersOf("the kernel never kills commands", "read", replaceWith("-1000\n"), "the kernel kills a sandbox before Caisson"),
		answersOf("a process limit is higher", "rlimits", replaceMatch("nofile .*", "nofile 1073741824"), "process limits are those that were planned"),
		answersOf("the guest's program can be written", "overwrite", appendText(sandbox.GuestPath+"\n"), "no program that runs can be rewritten"),
		answersOf("commands make set-user-ID files", "set-id", replaceMatch("EPERM 644", "ok 4755"), "commands make no set-user-ID files"),
		{
			name:   "modes that are refused can be set",
			checks: []string{"tar extracts", "cp -p preserves", "install installs", "git init --shared shares", "npm ci installs"},
			end:    succeed("sh"),
		},
		answersOf("sessions share /tmp", "find", appendText("file in /tmp\n"), "sessions see nothing of each other", "a fresh sandbox knows nothing of the last"),
		answersOf("directories of the root can be replaced", "replace", appendText("/dev\n"), "the root's directories can't be replaced"),
		{
			name:   "another kernel than was asked for",
			checks: []string{"the kernel is the one that was asked for"},
			target: func(t *Target) { t.OwnKernel = !t.OwnKernel },
		},
		{
			name:    "a socket of the host's can be reached",
			checks:  []string{"sockets and FIFOs of the host"},
			target:  func(t *Target) { t.OwnKernel = true },
			answers: answers{"connect": appendText("host.sock\n")},
		},
		{
			name:   "the attestation repeats the request",
			checks: []string{"the attestation is complete and true", imageUserCheck},
			attest: func(a *sandbox.Attestation) { a.User, a.KillMethod = "65534:65534", "" },
		},
		{
			name:   "namespaces are attested that there are not",
			checks: []string{"the attestation is complete and true"},
			attest: func(a *sandbox.Attestation) { a.Isolation, a.Namespaces = sandbox.IsolationNamespaces, nil },
		},
	}
}

func plans(name, check string, change func(p *sandbox.EgressPlan)) fault {
	return fault{name: name, checks: []string{check}, spec: func(s *sandbox.Spec) {
		if s.Egress != nil {
			plan := *s.Egress
			change(&plan)
			s.Egress = &plan
		}
	}}
}

func conns(name string, checks []string, change func(s *faultySandbox, c sandbox.EgressConn) *faultyConn) fault {
	return serves(name, checks, func(s *faultySandbox, h sandbox.EgressHandler, ctx context.Context, c sandbox.EgressConn) {
		h.ServeEgress(ctx, change(s, c))
	})
}

func serves(name string, checks []string, serve func(s *faultySandbox, h sandbox.EgressHandler, ctx context.Context, c sandbox.EgressConn)) fault {
	return fault{name: name, checks: checks, handler: func(s *faultySandbox, h sandbox.EgressHandler) sandbox.EgressHandler {
		return &faultyHandler{EgressHandler: h, serve: func(ctx context.Context, c sandbox.EgressConn) { serve(s, h, ctx, c) }}
	}}
}

type faultyHandler struct {
	sandbox.EgressHandler
	serve func(ctx context.Context, c sandbox.EgressConn)
}

func (h *faultyHandler) ServeEgress(ctx context.Context, c sandbox.EgressConn) { h.serve(ctx, c) }

// forgetful asks its handler for each name twice.
type forgetful struct{ sandbox.EgressHandler }

func (h forgetful) LookupName(ctx context.Context, name string) (netip.Addr, bool) {
	h.EgressHandler.LookupName(ctx, name)
	return h.EgressHandler.LookupName(ctx, name)
}

type faultyConn struct {
	sandbox.EgressConn
	uid    int             // 0 means its own
	lost   bool            // belongs to no command
	failed func(err error) // called when Read fails
}

func (c *faultyConn) UID() (int, bool) {
	if c.uid != 0 {
		return c.uid, true
	}
	return c.EgressConn.UID()
}

func (c *faultyConn) Command() int {
	if c.lost {
		return 0
	}
	return c.EgressConn.Command()
}

func (c *faultyConn) Read(p []byte) (int, error) {
	n, err := c.EgressConn.Read(p)
	if err != nil && c.failed != nil {
		c.failed(err)
	}
	return n, err
}

// idleConn is a connection that nobody made.
type idleConn struct{ sandbox.EgressConn }

func (idleConn) Read([]byte) (int, error)    { return 0, io.EOF }
func (idleConn) Write(p []byte) (int, error) { return len(p), nil }
func (idleConn) CloseWrite() error           { return nil }

func egressFaults() []fault {
	var once sync.Once
	return []fault{
		{
			name:   "there are listeners without a plan",
			checks: []string{egressNone},
			spec: func(s *sandbox.Spec) {
				if s.Egress == nil {
					s.Egress = &sandbox.EgressPlan{}
				}
			},
		},
		answersOf("connections without a handler are ended", "egress-first", replaceMatch("reset", "end"), egressConns),
		answersOf("names that are none are refused", "egress-lookup", replaceMatch(" 3\n", " 5\n"), egressNames),
		answersOf("a command listens beside the guest", "egress-bind", appendText("127.80.0.1:61080 0\n"), egressListeners),
		answersOf("commands may ask for the sockets of others", "attempt", replaceWith("allowed"), egressListeners),
		plans("certificates are not made known", egressRoots, func(p *sandbox.EgressPlan) { p.Roots = nil }),
		plans("commands have the proxy of others", egressReserved, func(p *sandbox.EgressPlan) { p.Reserved = false }),
		{name: "listeners are not attested", checks: []string{egressConns}, attest: func(a *sandbox.Attestation) { a.Egress = nil }},
		{
			name:    "the handler is asked for every record",
			checks:  []string{egressNames},
			handler: func(_ *faultySandbox, h sandbox.EgressHandler) sandbox.EgressHandler { return forgetful{h} },
		},
		conns("all connections are one user's", []string{egressConns}, func(_ *faultySandbox, c sandbox.EgressConn) *faultyConn {
			return &faultyConn{EgressConn: c, uid: sandbox.CommandUID}
		}),
		conns("connections belong to no command", []string{egressConns}, func(_ *faultySandbox, c sandbox.EgressConn) *faultyConn {
			return &faultyConn{EgressConn: c, lost: true}
		}),
		conns("the end of one direction ends both", []string{egressConns, egressStorm}, func(_ *faultySandbox, c sandbox.EgressConn) *faultyConn {
			return &faultyConn{EgressConn: c, failed: func(error) { c.Close() }}
		}),
		conns("the place of a reset connection is not given back", []string{egressStorm}, func(s *faultySandbox, c sandbox.EgressConn) *faultyConn {
			return &faultyConn{EgressConn: c, failed: func(err error) {
				if !errors.Is(err, io.EOF) {
					<-s.Done()
				}
			}}
		}),
		serves("connections outlive their command", []string{egressOver}, func(_ *faultySandbox, h sandbox.EgressHandler, ctx context.Context, c sandbox.EgressConn) {
			h.ServeEgress(context.WithoutCancel(ctx), c)
		}),
		serves("one connection too many is open", []string{egressBound}, func(_ *faultySandbox, h sandbox.EgressHandler, ctx context.Context, c sandbox.EgressConn) {
			once.Do(func() { go h.ServeEgress(ctx, idleConn{c}) })
			h.ServeEgress(ctx, c)
		}),
	}
}

func userFaults() []fault {
	var scars []string
	return []fault{
		answersOf("root inside has all capabilities", "facts", replaceMatch(`"CapEff":"\w+"`, `"CapEff":"000001ffffffffff"`), rootCheck),
		{name: "root inside is root of the host", checks: []string{rootCheck}, attest: func(a *sandbox.Attestation) { a.UIDMap = "0 0 4294967295" }},
		answersOf("root inside can't change the image", "root-works", replaceWith(""), "root inside owns a writable root"),
		{
			name:   "commands are not the image's user",
			checks: []string{imageUserCheck, imageHomeCheck, "an image's user that can't be is refused"},
			spec: func(s *sandbox.Spec) {
				if s.User == sandbox.UserImage {
					s.User = ""
				}
			},
		},
		answersOf("another identity has the groups of the image's user", "facts", replaceMatch(`"Groups":0`, `"Groups":2`), imageUserCheck),
		answersOf("the image's user has another home", "env", replaceMatch("HOME="+imageHome, "HOME=/"), imageHomeCheck),
		{name: "a group of the image opens files of the host's", checks: []string{imageUserCheck}, end: succeed("read")},
		{
			name:   "a root stays read-only",
			checks: []string{writableRoot, imageHomeCheck, "the root of image host can't be writable"},
			spec:   func(s *sandbox.Spec) { s.Root = "" },
		},
		answersOf("the layer of a root is used again", "scars", func(right string) string {
			scars = append(scars, right)
			return scars[min(len(scars), 2)-1] // the second look shows the changes
		}, writableRoot),
	}
}

func limitFaults() []fault {
	forks := 0
	return []fault{
		{
			name:   "an end out of memory is not reported",
			checks: []string{"memory"},
			end:    func(_ *faultyProcess, x *sandbox.Exit, _ *error) { x.Status.OOMKilled = false },
		},
		{
			name:   "the limit of processes is not reported",
			checks: []string{"processes"},
			end:    func(_ *faultyProcess, x *sandbox.Exit, _ *error) { x.PIDsLimitHit = !x.PIDsLimitHit },
		},
		{
			name:   "a command's own budget is none",
			checks: []string{ownBudget},
			end:    func(_ *faultyProcess, x *sandbox.Exit, _ *error) { x.Exceeded = nil },
		},
		{
			name:   "a full place is not reported",
			checks: []string{"a full place is reported"},
			end:    func(_ *faultyProcess, x *sandbox.Exit, _ *error) { x.Full = nil },
		},
		answersOf("open files are not limited", "open-files", replaceWith("1048576 EMFILE\n"), "open files"),
		answersOf("programs see the machine's processors", "processors", replaceWith("64 64 0-63\n"), "processors are those of the limit"),
		answersOf("tmpfs holds more than the memory limit", "hold", replaceWith("none\n"), "memory that no process holds"),
		answersOf("descriptors are not given back", "open-files", replaceWith("0 ENFILE\n"), "out of files, then well again"),
		answersOf("processes are not given back", "fork-count", func(right string) string {
			if forks++; forks > 1 {
				return "3\n"
			}
			return right
		}, "forks can be had again"),
	}
}

func services(name string, checks []string, change func(s *sandbox.Service)) fault {
	return fault{name: name, checks: checks, spec: func(s *sandbox.Spec) {
		if s.Service != nil {
			service := *s.Service
			change(&service)
			s.Service = &service
		}
	}}
}

func lifeFaults() []fault {
	return []fault{
		{
			name:   "sandboxes have no name",
			checks: []string{"a running sandbox is running", "a fresh sandbox knows nothing of the last"},
			id:     replaceWith(""),
		},
		{
			name:   "unknown settings are ignored",
			checks: []string{"bad specs are refused and leave nothing"},
			spec: func(s *sandbox.Spec) {
				if s.Git == "rw" {
					s.Git = ""
				}
			},
		},
		{name: "a start can't be cancelled", checks: []string{"a cancelled start leaves nothing"}, unstoppable: true},
		{
			name:   "destroy leaves a directory",
			checks: []string{furtherMounts, "sessions see nothing of each other", writableRoot, ownBudget},
			destroy: func(ctx context.Context, s *faultySandbox) error {
				return errors.Join(s.Sandbox.Destroy(ctx), os.MkdirAll(filepath.Join(s.spec.Dir, "left"), 0o700))
			},
		},
		{
			name:   "sweep says that it removed a living session",
			checks: []string{"sweep spares the living"},
			sweep:  func(b *faulty) []sandbox.Orphan { return []sandbox.Orphan{{Session: b.made[0].spec.Session}} },
		},
		services("the start does not wait for its service", []string{serviceRuns, unhealthyService}, func(s *sandbox.Service) { s.HealthCheck = nil }),
		services("the service runs as the agent's user", []string{serviceRuns}, func(s *sandbox.Service) { s.AsAgent = true }),
	}
}
