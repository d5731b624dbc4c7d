// Package boot brings the guest up: it takes over the connection, reads the
// configuration, restricts itself, reports what it observes, and serves.
package boot

import (
	"bufio"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/serve"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
)

// The runtime's knobs. Two processors: a vfork holds one until its child has
// executed. A small heap: the guest's memory is charged to the commands' limit,
// and it allocates little.
const (
	processors  = 2
	gcPercent   = 25
	memoryLimit = 48 << 20
)

// connectionSize is the pipe's buffer in each direction, the largest that an
// unprivileged process may ask for by default (fs.pipe-max-size). A cancel or a
// pong may have to wait for that much data: 2 ms of docker's throughput. A
// quarter of it cost docker a tenth of that, by switches between the processes
// on the way.
const connectionSize = 1 << 20

// Options describe the guest.
type Options struct {
	Version string
	// Executable is the path of the guest's own binary.
	Executable string
}

// Run is the guest's life. It returns nil when the host has closed the
// connection; the caller then exits, with which the kernel kills everything in
// the container.
func Run(o Options) error {
	if pid := os.Getpid(); pid != 1 {
		return fmt.Errorf("caisson-guest is the PID 1 of a container, and this is PID %d", pid)
	}
	runtime.GOMAXPROCS(processors)
	debug.SetGCPercent(gcPercent)
	debug.SetMemoryLimit(memoryLimit)
	unix.Umask(0o022)
	// What a runtime may have left open must not reach commands.
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
		// The host fails closed on it, with the reason at hand.
		fault := wire.Hello{Protocol: wire.Version, Version: o.Version, Error: err.Error()}
		return errors.Join(err, writer.SendJSON(0, wire.TypeHello, fault))
	}
	if err := writer.SendJSON(0, wire.TypeHello, hello); err != nil {
		return err
	}
	session.Frames, session.Writer = frames, writer
	return serve.New(session).Run()
}

// keepFromCommands marks every descriptor beyond standard error close-on-exec.
func keepFromCommands() {
	if unix.CloseRange(3, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC) == nil {
		return
	}
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return // neither close_range nor /proc: the probe finds what is still open
	}
	for _, e := range entries {
		if fd, err := strconv.Atoi(e.Name()); err == nil && fd > 2 {
			unix.CloseOnExec(fd)
		}
	}
}

// takeConnection moves the connection off the descriptors 0 and 1, which
// become /dev/null: nothing that the guest starts can then inherit it by
// accident, and the runtime polls it instead of giving it a thread.
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
		// Fewer switches between the ends; where it is no pipe it stays as it is.
		_, _ = unix.FcntlInt(uintptr(moved), unix.F_SETPIPE_SZ, connectionSize)
		files[fd] = os.NewFile(uintptr(moved), "connection")
		if err := unix.Dup3(int(null.Fd()), fd, unix.O_CLOEXEC); err != nil {
			return nil, nil, nil, fmt.Errorf("replace descriptor %d: %w", fd, err)
		}
	}
	unix.CloseOnExec(2)
	return null, files[0], files[1], nil
}

// receiveConfig hears the host's first frame.
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
		// Host and guest of one build read each other.
		return c, fmt.Errorf("read configuration: %w: caisson and caisson-guest must be of one build", err)
	}
	return c, c.Validate()
}
