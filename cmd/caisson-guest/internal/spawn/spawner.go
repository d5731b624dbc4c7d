package spawn

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/filter"
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/identity"
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/setid"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
)

// Options says as whom and where commands run.
type Options struct {
	// Commands is identity 0, whose groups are besides Request.Group.
	identity.Commands
	// Another identity n has user and group IdentityBase+n. IdentityCount is
	// how many there are, and IdentityDir the directory of their homes. Only
	// the guest can write its parent.
	IdentityBase, IdentityCount uint32
	IdentityDir                 string
	Workspace                   string
	// Null is /dev/null, which stays open.
	Null *os.File
	// MilliCPUs is the limit of CPU time, in thousandths of a processor; 0
	// means none.
	MilliCPUs int64
}

// Request is a program to start.
type Request struct {
	Argv, Env []string
	// Dir is relative to the workspace; empty means the workspace, or the home
	// of an identity other than 0.
	Dir string
	// Identity is the command's; it is below Spawner.Identities.
	Identity int
	// NoLinks forbids symlinks in Dir.
	NoLinks bool
	// Stdin asks for a pipe; otherwise standard input is /dev/null.
	Stdin bool
	// Terminal makes a new terminal of this size the child's streams, and its
	// controlling terminal unless Shimmed, which leaves that to the child.
	Terminal *wire.TerminalSize
	Shimmed  bool
	// Extra are the child's descriptors from 3 on. The caller keeps them open.
	Extra []uintptr
	// Group is the child's supplementary group, if Options.Separate.
	Group uint32
	// Program, if set, is executed instead of looking up Argv[0].
	Program string
}

// Child is a started process. The caller closes the files, which don't block
// and accept deadlines.
type Child struct {
	PID int
	// Stdin is nil unless asked for, Stderr with a terminal. Then Stdin and
	// Stdout are its other end, which hangs up when both are closed.
	Stdin, Stdout, Stderr *os.File
}

// Close closes the files.
func (c Child) Close() {
	for _, f := range []*os.File{c.Stdin, c.Stdout, c.Stderr} {
		_ = f.Close() // of nil it fails
	}
}

// ErrDir means that the working directory can't be used as given.
var ErrDir = errors.New("working directory")

// Spawner starts commands, one at a time. It is safe for concurrent use. It
// lives as long as the process: its thread can't be given back.
type Spawner struct {
	o      Options
	root   *os.Root
	dir    int            // the workspace, O_PATH
	thread *identity.Pool // of one
	lost   []string
	inDir  string // the process's directory, relative to the workspace
	// identities is the number of identities, including 0.
	identities int
	homes      map[int]bool // identities whose home was made
	// helper has the commands' identity without their filter.
	helper *identity.Pool
	cpus   *affinity
	oom    oomScore
}

// New starts the spawner's thread and restricts it. An error means that
// commands would not be restricted enough.
func New(o Options) (*Spawner, error) {
	helper, err := identity.NewPool(o.Commands, 1)
	if err != nil {
		return nil, err
	}
	s := &Spawner{o: o, helper: helper, homes: map[int]bool{}}
	if s.thread, err = identity.NewThreads(1, s.prepareThread); err != nil {
		return nil, err
	}
	return s, nil
}

// Lost describes what this kernel or container didn't let the spawner do.
func (s *Spawner) Lost() []string { return s.lost }

// Identities returns the number of identities that commands can have, including
// 0.
func (s *Spawner) Identities() int { return s.identities }

// prepareThread restricts the thread and opens what it needs.
func (s *Spawner) prepareThread() error {
	// The thread's capabilities, and those of commands.
	own, commands := uint64(1<<unix.CAP_SETUID|1<<unix.CAP_SETGID), uint64(0)
	if s.o.Root {
		own, commands = wire.RootCapabilities, wire.RootCapabilities
	}
	if err := identity.LimitBounding(commands); err != nil {
		if s.o.Separate || s.o.Root {
			return err
		}
		s.lost = append(s.lost, "the bounding set of commands is not empty: "+err.Error())
	}
	identity.ClearAmbient()
	if s.o.Separate {
		if err := identity.SetGroups(); err != nil {
			return err
		}
	}
	if err := identity.LimitCapabilities(own); err != nil {
		return err
	}
	if err := identity.NoNewPrivileges(); err != nil {
		return err
	}
	if err := s.setFilter(); err != nil {
		return err
	}
	s.cpus = newAffinity(s.o.MilliCPUs)
	s.oom = openOOMScore(ownOOMScore)
	s.identities = s.countIdentities()
	return s.withIdentity(0, func() error { return s.openWorkspace() })
}

// setFilter installs the commands' filter, and answers calls that it can't
// decide.
func (s *Spawner) setFilter() error {
	choice := setid.Choose()
	if choice != filter.NotifySetID {
		return identity.SetFilter(filter.Program(choice))
	}
	listener, err := identity.SetFilterWithListener(filter.Program(choice))
	if err != nil { // a filter from before the guest started may have one
		return identity.SetFilter(filter.Program(filter.RefuseSetID))
	}
	if !s.o.Separate && !s.o.Root { // root may become others
		return setid.Supervise(listener, setid.AnyUser, s.helper.Do)
	}
	return setid.Supervise(listener, int64(s.o.UID), s.helper.Do)
}

// ProtectGuest refuses later commands the calls that change processes with ids
// up to last: the guest and its threads, whose user root commands have.
func (s *Spawner) ProtectGuest(last int) error {
	var err error
	s.thread.Do(func() { err = identity.SetFilter(filter.Protect(uint32(last))) })
	return err
}

// openWorkspace opens the workspace as the commands' identity, and enters it.
func (s *Spawner) openWorkspace() error {
	dir, err := unix.Open(s.o.Workspace, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open workspace: %w", err)
	}
	s.dir = dir
	if s.root, err = os.OpenRoot(s.o.Workspace); err != nil {
		return fmt.Errorf("open workspace: %w", err)
	}
	if err := unix.Fchdir(dir); err != nil {
		return fmt.Errorf("enter workspace: %w", err)
	}
	return nil
}

// Spawn starts a program. It returns [ErrDir], or a [*Failure] if the program
// can't be executed.
func (s *Spawner) Spawn(r Request) (child Child, err error) {
	s.thread.Do(func() { child, err = s.spawnChild(r) })
	return child, err
}

// Find enters the working directory and looks up the program without starting
// it. It returns errors as Spawn does.
func (s *Spawner) Find(r Request) (program string, err error) {
	s.thread.Do(func() {
		err = s.withIdentity(r.Identity, func() (err error) {
			program, err = s.resolveProgram(r)
			return err
		})
	})
	return program, err
}

// resolveProgram must run with the commands' identity.
func (s *Spawner) resolveProgram(r Request) (program string, err error) {
	enter := s.enterDirectory
	if r.Identity != 0 && r.Dir == "" {
		enter = func(string, bool) error { return s.enterHome(r.Identity) }
	}
	if err := enter(r.Dir, r.NoLinks); err != nil {
		return "", err
	}
	if r.Program != "" {
		return r.Program, nil
	}
	return findProgram(r.Argv[0], r.Env)
}

func (s *Spawner) spawnChild(r Request) (Child, error) {
	if err := s.makeHome(r.Identity); err != nil {
		return Child{}, err
	}
	var program string
	var p pipes
	err := s.withIdentity(r.Identity, func() (err error) {
		if program, err = s.resolveProgram(r); err != nil {
			return err
		}
		if r.Terminal != nil {
			return p.openTerminal(*r.Terminal, r.Stdin)
		}
		return p.openPipes(s.o.Null.Fd(), r.Stdin)
	})
	if err != nil {
		return Child{}, err
	}
	attr := syscall.ProcAttr{
		Env:   r.Env,
		Files: append(p.files, r.Extra...),
		Sys:   &syscall.SysProcAttr{Setsid: true, Setctty: r.Terminal != nil && !r.Shimmed}, // descriptor 0
	}
	if s.o.Separate {
		uid, gid := s.userOf(r.Identity)
		attr.Sys.Credential = &syscall.Credential{Uid: uid, Gid: gid, Groups: []uint32{r.Group}}
		if r.Identity == 0 {
			attr.Sys.Credential.Groups = append(attr.Sys.Credential.Groups, s.o.Groups...)
		}
	}
	s.cpus.restrictThread()
	s.oom.raiseScore()
	pid, err := syscall.ForkExec(program, r.Argv, &attr)
	s.oom.restoreScore()
	s.cpus.restoreThread()
	p.closeChild()
	if err != nil {
		p.closeOurs()
		return Child{}, s.explainError(r, program, err)
	}
	return Child{PID: pid, Stdin: p.ours[0], Stdout: p.ours[1], Stderr: p.ours[2]}, nil
}

// oomScore makes commands the first that the kernel kills when the container's
// memory runs out. They would inherit the guest's own score, and the guest can
// be the largest process if a file system in memory is full. A score can be
// raised without a capability, and lowered again to the old value. The zero
// value does nothing.
type oomScore struct {
	file *os.File
	own  []byte
}

// highestScore is Linux's OOM_SCORE_ADJ_MAX (include/uapi/linux/oom.h).
var highestScore = []byte("1000")

// ownOOMScore is the file of this process's score.
const ownOOMScore = "/proc/self/oom_score_adj"

// openOOMScore opens the file of a score. It returns the zero value if the
// kernel refuses.
func openOOMScore(file string) oomScore {
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		return oomScore{}
	}
	own := make([]byte, 16)
	n, _ := f.ReadAt(own, 0)
	o := oomScore{file: f, own: bytes.TrimSpace(own[:n])}
	if n == 0 || !o.setScore(highestScore) || !o.setScore(o.own) {
		_ = f.Close()
		return oomScore{}
	}
	return o
}

func (o oomScore) setScore(score []byte) bool {
	_, err := o.file.WriteAt(score, 0)
	return err == nil
}

// raiseScore raises the guest's score for the next child. Call restoreScore
// afterwards.
func (o oomScore) raiseScore() {
	if o.file != nil {
		o.setScore(highestScore)
	}
}

// restoreScore undoes raiseScore.
func (o oomScore) restoreScore() {
	if o.file != nil {
		o.setScore(o.own)
	}
}

// pipes are both sides of one child's pipes or terminal.
type pipes struct {
	ours  [3]*os.File // ours[0] is nil without a pipe for standard input
	files []uintptr   // the child's descriptors from 0 on
	made  []int       // the descriptors in files that we must close
}

// openPipes makes the pipes, as the commands' identity: a pipe belongs to its
// maker, and a command opens its own again by /dev/stdout.
func (p *pipes) openPipes(null uintptr, stdin bool) error {
	p.files = []uintptr{null}
	for n := range p.ours {
		if n == 0 && !stdin {
			continue
		}
		if err := p.openOne(n); err != nil {
			p.closeChild()
			p.closeOurs()
			return fmt.Errorf("make pipe: %w", err)
		}
	}
	return nil
}

// openOne makes the pipe for the child's descriptor n. Our side does not block,
// so the runtime's poller waits for it instead of a thread; the child's does.
func (p *pipes) openOne(n int) error {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return err
	}
	child, ours := fds[1], fds[0]
	if n == 0 {
		child, ours = fds[0], fds[1]
		p.files = p.files[:0]
	}
	if err := unix.SetNonblock(ours, true); err != nil {
		return errors.Join(err, unix.Close(child), unix.Close(ours))
	}
	p.files = append(p.files, uintptr(child))
	p.made = append(p.made, child)
	p.ours[n] = os.NewFile(uintptr(ours), "pipe")
	return nil
}

// closeChild closes the child's sides, which the child has by now.
func (p *pipes) closeChild() {
	for _, fd := range p.made {
		_ = unix.Close(fd)
	}
	p.made = nil
}

func (p *pipes) closeOurs() {
	for _, f := range p.ours {
		_ = f.Close() // of nil it fails
	}
}

// affinity restricts each command to as many processors as its limit of CPU
// time amounts to, so that programs which ask how many there are (nproc,
// runtime.NumCPU, sched_getaffinity) start no more threads. It works without a
// cgroup, for ordinary users, and in gVisor. The time itself is bounded
// elsewhere: a command that widens its set gains nothing.
type affinity struct {
	all  unix.CPUSet
	list []int // the processors of all
	n    int
}

// newAffinity returns nil if the limit is not below the number of processors.
func newAffinity(milliCPUs int64) *affinity {
	a := &affinity{n: int((milliCPUs + 999) / 1000)}
	if milliCPUs <= 0 || unix.SchedGetaffinity(0, &a.all) != nil {
		return nil
	}
	for cpu := range len(a.all) * int(unsafe.Sizeof(a.all[0])) * 8 {
		if a.all.IsSet(cpu) {
			a.list = append(a.list, cpu)
		}
	}
	if a.n >= len(a.list) {
		return nil
	}
	return a
}

// restrictThread limits the calling thread, and so the next child, to the
// processors from its current one on. The kernel has just chosen that one, so
// commands and sessions spread as the kernel spreads them. Call restoreThread
// afterwards.
func (a *affinity) restrictThread() {
	if a == nil {
		return
	}
	set := a.cpuWindow(currentCPU())
	_ = unix.SchedSetaffinity(0, &set) // only for speed, and for what programs see
}

func (a *affinity) restoreThread() {
	if a != nil {
		_ = unix.SchedSetaffinity(0, &a.all)
	}
}

// cpuWindow returns n processors from cpu on, wrapping around.
func (a *affinity) cpuWindow(cpu int) (set unix.CPUSet) {
	at := 0
	for i, c := range a.list {
		if c == cpu {
			at = i
		}
	}
	for i := range a.n {
		set.Set(a.list[(at+i)%len(a.list)])
	}
	return set
}

func currentCPU() int {
	var cpu uint32 // stays 0 if the call fails
	_, _, _ = unix.RawSyscall(unix.SYS_GETCPU, uintptr(unsafe.Pointer(&cpu)), 0, 0)
	return int(cpu)
}
