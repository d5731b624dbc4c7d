// Package boot brings the guest up: it takes over the connection, reads the
// configuration, restricts itself, reports what it observes, and serves.
package boot

import (
	"bufio"
	"errors"
	"fmt"
	"math"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strconv"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/serve"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
)

// The runtime's settings. A vfork holds a processor until its child has
// executed, so there are two. The heap is small because the guest allocates
// little, and its memory is charged to the commands' limit.
const (
	processors  = 2
	gcPercent   = 25
	memoryLimit = 48 << 20
)

// connectionSize is the pipe's buffer in each direction, the largest that an
// unprivileged process may ask for by default (fs.pipe-max-size). A cancel or
// pong may have to wait for that much data: 2 ms of Docker's throughput. A
// quarter of it cost Docker a tenth of the throughput, for switches between the
// processes on the way.
const connectionSize = 1 << 20

// Options describes the guest.
type Options struct {
	Version string
	// Executable is the path of the guest's own binary.
	Executable string
}

// Run runs the guest. It returns nil when the host has closed the connection.
// The caller then exits, and the kernel kills everything in the container.
func Run(o Options) error {
	if pid := os.Getpid(); pid != 1 {
		return fmt.Errorf("caisson-guest is the PID 1 of a container, and this is PID %d", pid)
	}
	runtime.GOMAXPROCS(processors)
	debug.SetGCPercent(gcPercent)
	debug.SetMemoryLimit(memoryLimit)
	unix.Umask(0o022)
	// Commands must not get descriptors that a runtime left open.
	keepFromCommands()
	null, in, out, err := takeConnection()
	if err != nil {
		return err
	}
	host := &listener{in: in, silence: firstSilence}
	frames := wire.NewReader(bufio.NewReaderSize(host, 16<<10))
	writer := wire.NewWriter(out)
	config, err := receiveConfig(frames)
	if err != nil {
		return err
	}
	host.silence = time.Duration(config.SilenceMS) * time.Millisecond
	session, hello, err := prepare(o, config, null)
	if err != nil {
		// The host fails closed, with the reason.
		fault := wire.Hello{Protocol: wire.Version, Version: o.Version, Error: err.Error()}
		return errors.Join(err, writer.SendJSON(0, wire.TypeHello, fault))
	}
	if err := writer.SendJSON(0, wire.TypeHello, hello); err != nil {
		return err
	}
	session.Frames, session.Writer = frames, writer
	return serve.New(session).Run()
}

// keepFromCommands marks all descriptors above standard error close-on-exec.
func keepFromCommands() {
	if unix.CloseRange(3, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC) == nil {
		return
	}
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return // neither close_range nor /proc: the probe finds open ones
	}
	for _, e := range entries {
		if fd, err := strconv.Atoi(e.Name()); err == nil && fd > 2 {
			unix.CloseOnExec(fd)
		}
	}
}

// takeConnection moves the connection off descriptors 0 and 1, which become
// /dev/null. So no child can inherit it by accident, and the runtime polls it
// instead of giving it a thread.
func takeConnection() (null, in, out *os.File, err error) {
	null, err = os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("open null device: %w", err)
	}
	var files [2]*os.File
	for fd := range files {
		moved, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
		if err != nil {
			return nil, nil, nil, fmt.Errorf("take over descriptor %d: %w", fd, err)
		}
		if err := unix.SetNonblock(moved, true); err != nil {
			return nil, nil, nil, fmt.Errorf("take over descriptor %d: %w", fd, err)
		}
		// For fewer switches between the ends; no effect if it is not a pipe.
		_, _ = unix.FcntlInt(uintptr(moved), unix.F_SETPIPE_SZ, connectionSize)
		files[fd] = os.NewFile(uintptr(moved), "connection")
		if err := unix.Dup3(int(null.Fd()), fd, unix.O_CLOEXEC); err != nil {
			return nil, nil, nil, fmt.Errorf("replace descriptor %d: %w", fd, err)
		}
	}
	unix.CloseOnExec(2)
	return null, files[0], files[1], nil
}

func receiveConfig(frames *wire.Reader) (wire.Config, error) {
	var c wire.Config
	f, err := frames.Next()
	if err != nil {
		return c, fmt.Errorf("wait for configuration: %w", err)
	}
	if f.Type != wire.TypeConfig {
		return c, fmt.Errorf("wait for configuration: %w: frame type %d", wire.ErrProtocol, f.Type)
	}
	if err := wire.Decode(f.Payload, &c); err != nil {
		// Host and guest of the same build understand each other.
		return c, fmt.Errorf("read configuration: %w: caisson and caisson-guest must be of one build", err)
	}
	return c, c.Validate()
}

// forbidCores sets the limit of core files to 1 byte. Then the kernel neither
// writes one nor runs the program of a core pattern that is a pipe. With 0 it
// would run it, as root on the host (coredump_pipe in fs/coredump.c). An
// ordinary user's hard limit of 0 stays.
func forbidCores() error {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_CORE, &l); err != nil {
		return err
	}
	bytes := min(l.Max, 1)
	return unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{Cur: bytes, Max: bytes})
}

// faults are the signals that the Go runtime turns into panics.
var faults = []unix.Signal{unix.SIGILL, unix.SIGTRAP, unix.SIGBUS, unix.SIGFPE, unix.SIGSEGV, unix.SIGSTKFLT, unix.SIGSYS}

// lastSignal is Linux's highest signal.
const lastSignal = 64

// ignoreSignals makes the guest survive every signal that a command with its
// user can send. The kernel drops signals to PID 1 from inside its namespace
// unless PID 1 handles them, and the Go runtime handles nearly all, some by
// ending the program. Signals of faults get the default action back, so they
// are dropped; a real fault then ends the guest without a stack. The others are
// received and left alone. None is set to be ignored, which commands would
// inherit.
func ignoreSignals() error {
	var others []os.Signal
	for n := unix.Signal(1); n <= lastSignal; n++ {
		if n != unix.SIGCHLD && n != unix.SIGURG { // the wait loop's and the scheduler's
			others = append(others, n)
		}
	}
	for _, n := range faults {
		var action [4]uint64 // struct sigaction: SIG_DFL, no flags
		if _, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(n), uintptr(unsafe.Pointer(&action)), 0, 8, 0, 0); errno != 0 {
			return errno
		}
	}
	signal.Notify(make(chan os.Signal, 1), others...)
	return nil
}

// firstSilence is how long the guest waits for its configuration: five times as
// long as a host waits for a whole start.
const firstSilence = 5 * time.Minute

// listener reads the connection and fails if nothing arrives for too long. An
// engine that is killed during a start can leave an unrecorded container whose
// shim holds standard input open forever.
type listener struct {
	in *os.File
	// silence bounds each wait, unless it is zero.
	silence time.Duration
}

// Read reads bytes. It has no bound if the file has no deadlines.
func (l *listener) Read(p []byte) (int, error) {
	var until time.Time
	if l.silence > 0 {
		until = time.Now().Add(l.silence)
	}
	if err := l.in.SetReadDeadline(until); err != nil && !errors.Is(err, os.ErrNoDeadline) {
		return 0, fmt.Errorf("listen to host: %w", err)
	}
	n, err := l.in.Read(p)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = fmt.Errorf("the host was silent for %v", l.silence)
	}
	return n, err
}
