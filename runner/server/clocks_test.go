package server

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// clocks are a child process's clocks. Moving them moves no other clock.
//
//	this process                            child
//	────────────                            ─────
//	start it stopped, hide its vDSO ──────▶ has to ask the kernel for the time
//	◀──────────────────────── the listener  puts a seccomp filter on itself
//	the true time, and how far it is moved ▶ what clock_gettime says
//
// The monotonic clock can't be moved: the kernel answers for it.
type clocks struct {
	wall, boot atomic.Int64 // nanoseconds that each is ahead of the true one
	asked      atomic.Int64 // how often the child asked for the wall clock
}

// Auxiliary vector entries (getauxval(3)): where the vDSO is, and none.
const (
	auxIgnore = 1
	auxVDSO   = 33
)

const startTime = time.Minute

// startCommand starts a command with these clocks. Its first line of standard
// output is the listener's descriptor, as [filterClocks] prints it; line
// returns it.
func (c *clocks) startCommand(t *testing.T, cmd *exec.Cmd, line func() string) {
	t.Helper()
	cmd.Env = append(cmd.Env, "GODEBUG=asyncpreemptoff=1") // its signals would interrupt each question again and again
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true}
	started := make(chan error, 1)
	go func() {
		// The tracer is this thread. It stays locked, so it ends with this
		// goroutine.
		runtime.LockOSThread()
		started <- func() error {
			if err := cmd.Start(); err != nil {
				return err
			}
			var status syscall.WaitStatus
			if _, err := syscall.Wait4(cmd.Process.Pid, &status, 0, nil); err != nil || !status.Stopped() {
				return fmt.Errorf("the child is not stopped at its start: %v, %w", status, err)
			}
			return errors.Join(hideVDSO(cmd.Process.Pid), syscall.PtraceDetach(cmd.Process.Pid))
		}()
	}()
	if err := <-started; err != nil {
		lacking(t, "a child can't be traced: "+err.Error())
	}
	lines := make(chan string, 1)
	go func() { lines <- line() }()
	var said string
	select {
	case said = <-lines:
	case <-time.After(startTime):
		_ = cmd.Process.Kill() // which also ends the read
		t.Fatalf("the child prints no listener within %v", startTime)
	}
	number, err := strconv.Atoi(said)
	if err != nil {
		lacking(t, "a child can't have clocks of its own: "+said)
	}
	pid, err := unix.PidfdOpen(cmd.Process.Pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := unix.PidfdGetfd(pid, number, 0)
	if err := errors.Join(err, unix.Close(pid)); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- c.serveTime(listener) }()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		if err := errors.Join(<-done, unix.Close(listener)); err != nil {
			t.Error(err)
		}
	})
}

// hideVDSO hides the vDSO from a process that has not run yet. With it the
// process could read the time without a system call.
func hideVDSO(pid int) error {
	proc := fmt.Sprintf("/proc/%d/", pid)
	aux, err := os.ReadFile(proc + "auxv")
	if err != nil {
		return err
	}
	var entry []byte
	for rest := aux; len(rest) >= 16; rest = rest[16:] {
		if binary.NativeEndian.Uint64(rest) == auxVDSO {
			entry = rest[:16]
		}
	}
	if entry == nil {
		return nil // it has none
	}
	maps, err := os.ReadFile(proc + "maps")
	if err != nil {
		return err
	}
	var from, to int64
	for line := range strings.Lines(string(maps)) {
		if strings.HasSuffix(line, "[stack]\n") {
			if _, err := fmt.Sscanf(line, "%x-%x", &from, &to); err != nil {
				return err
			}
		}
	}
	mem, err := os.OpenFile(proc+"mem", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer mem.Close()
	stack := make([]byte, to-from)
	if _, err := mem.ReadAt(stack, from); err != nil {
		return err
	}
	at := bytes.LastIndex(stack, entry)
	if at < 0 {
		return errors.New("the stack has no auxiliary vector")
	}
	_, err = mem.WriteAt(binary.NativeEndian.AppendUint64(nil, auxIgnore), from+int64(at))
	return err
}

// notification and reply are struct seccomp_notif and seccomp_notif_resp of
// linux/seccomp.h.
type notification struct {
	id         uint64
	pid, flags uint32
	nr         int32
	arch       uint32
	ip         uint64
	args       [6]uint64
}

type notified struct {
	id    uint64
	val   int64
	err   int32
	flags uint32
}

// serveTime answers requests for the time until the process has ended.
func (c *clocks) serveTime(listener int) error {
	for {
		waits := []unix.PollFd{{Fd: int32(listener), Events: unix.POLLIN}}
		if _, err := unix.Poll(waits, -1); err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for a question: %w", err)
		}
		if waits[0].Revents&unix.POLLIN == 0 {
			if waits[0].Revents&unix.POLLHUP != 0 {
				return nil
			}
			continue
		}
		var n notification
		err := ioctl(listener, unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(&n))
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINTR) {
			continue // who asked is gone
		}
		if err != nil {
			return fmt.Errorf("take a question: %w", err)
		}
		clock, ahead := int32(n.args[0]), &c.wall
		if clock == unix.CLOCK_BOOTTIME {
			ahead = &c.boot
		} else {
			c.asked.Add(1)
		}
		var now unix.Timespec
		if err := unix.ClockGettime(clock, &now); err != nil {
			return err
		}
		now = unix.NsecToTimespec(now.Nano() + ahead.Load())
		text := unsafe.Slice((*byte)(unsafe.Pointer(&now)), unsafe.Sizeof(now))
		local := []unix.Iovec{{Base: &text[0]}}
		local[0].SetLen(len(text))
		to := []unix.RemoteIovec{{Base: uintptr(n.args[1]), Len: len(text)}}
		reply := notified{id: n.id}
		if _, err := unix.ProcessVMWritev(int(n.pid), local, to, 0); err != nil {
			reply.err = -int32(unix.EFAULT) // or it is gone
		}
		if err := ioctl(listener, unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&reply)); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("answer: %w", err)
		}
	}
}

func ioctl(fd int, request uintptr, arg unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(arg)); errno != 0 {
		return errno
	}
	return nil
}

// filterClocks makes this process's reads of the wall clock and of the
// boot-time clock wait for another process's answer, and prints the descriptor
// for the answers. The garbage collector reads the wall clock while it has
// stopped the process, so the collector waits until the descriptor is out.
func filterClocks() error {
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	load := func(offset uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
	}
	is := func(value uint32, yes, no uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: value, Jt: yes, Jf: no}
	}
	end := func(action uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: action}
	}
	// The offsets are struct seccomp_data's; the processor is little-endian.
	program := []unix.SockFilter{
		load(0), is(unix.SYS_CLOCK_GETTIME, 0, 3),
		load(16), is(unix.CLOCK_REALTIME, 2, 0), is(unix.CLOCK_BOOTTIME, 1, 0),
		end(unix.SECCOMP_RET_ALLOW), end(unix.SECCOMP_RET_USER_NOTIF),
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	const flags = unix.SECCOMP_FILTER_FLAG_TSYNC | unix.SECCOMP_FILTER_FLAG_TSYNC_ESRCH | unix.SECCOMP_FILTER_FLAG_NEW_LISTENER
	fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags,
		uintptr(unsafe.Pointer(&unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]})))
	if errno != 0 {
		return errno
	}
	_, err := os.Stdout.WriteString(strconv.Itoa(int(fd)) + "\n")
	return err
}

// clocked starts a server with moved clocks in another process, on the world's
// state, and makes it the world's server. end kills it.
func (w *testEnv) clocked(c *clocks, confirm time.Duration) (end func()) {
	w.t.Helper()
	w.base, end = w.startChild(c, childConfirm+"="+confirm.String())
	return end
}

// serverDate returns the server's time, from the Date of a response.
func (w *testEnv) serverDate() time.Time {
	w.t.Helper()
	at, err := time.Parse(time.RFC1123, w.get("/healthz").requireStatus(w.t, 200).header.Get("Date"))
	if err != nil {
		w.t.Fatal(err)
	}
	return at
}

func (w *testEnv) made() bool {
	w.t.Helper()
	_, err := os.Stat(w.dir + "/out.txt")
	if err != nil && !os.IsNotExist(err) {
		w.t.Fatal(err)
	}
	return err == nil
}

// question starts a session that asks a question.
func (w *testEnv) question() (path string, c Confirmation) {
	w.t.Helper()
	id := w.startSession("bind")
	f := w.followEvents(id, "")
	defer f.close()
	turn := w.startTurn(id, "go")
	c = w.waitForConfirmation(id, f)
	return "/sessions/" + id + "/turns/" + turn + "/confirmations/" + c.ID, c
}

// of returns the session and the turn in a question's path.
func of(path string) (session, turn string) {
	parts := strings.Split(path, "/")
	return parts[2], parts[4]
}
