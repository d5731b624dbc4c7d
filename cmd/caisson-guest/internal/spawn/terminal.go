package spawn

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/sandbox/guest/wire"
)

// openTerminal makes a terminal for the child's streams, as the commands'
// identity: it belongs to its maker.
func (p *pipes) openTerminal(size wire.TerminalSize, stdin bool) error {
	master, err := openMaster(size)
	if err != nil {
		return fmt.Errorf("make terminal: %w", err)
	}
	p.ours[1] = os.NewFile(uintptr(master), "terminal")
	slave, err := openSlave(master)
	if err == nil {
		p.made = []int{slave}
		p.files = []uintptr{uintptr(slave), uintptr(slave), uintptr(slave)}
	}
	if err == nil && stdin {
		var input int
		if input, err = unix.FcntlInt(uintptr(master), unix.F_DUPFD_CLOEXEC, 0); err == nil {
			p.ours[0] = os.NewFile(uintptr(input), "terminal")
		}
	}
	if err != nil {
		p.closeChild()
		p.closeOurs()
		return fmt.Errorf("make terminal: %w", err)
	}
	return nil
}

// openMaster makes a terminal. Our side does not block.
func openMaster(size wire.TerminalSize) (int, error) {
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("open /dev/ptmx: %w", err)
	}
	mode, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err == nil {
		mode.Iflag |= unix.IUTF8 // so that one key erases a whole character
		err = unix.IoctlSetTermios(fd, unix.TCSETS, mode)
	}
	err = errors.Join(err, unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0), ResizeTerminal(fd, size))
	if err != nil {
		return 0, errors.Join(err, unix.Close(fd))
	}
	return fd, nil
}

// openSlave opens a terminal's other end: through the descriptor, or by name if
// the kernel can't (gVisor 20260905).
func openSlave(master int) (int, error) {
	const flags = unix.O_RDWR | unix.O_NOCTTY | unix.O_CLOEXEC
	fd, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(master), unix.TIOCGPTPEER, flags)
	if errno == 0 {
		return int(fd), nil
	}
	return openByName(master, flags)
}

// openByName opens a terminal's other end by its name in devpts, in which nobody
// can make or replace names.
func openByName(master, flags int) (int, error) {
	number, err := unix.IoctlGetInt(master, unix.TIOCGPTN)
	if err != nil {
		return 0, err
	}
	return unix.Open("/dev/pts/"+strconv.Itoa(number), flags|unix.O_NOFOLLOW, 0)
}

// ResizeTerminal sets the size of a terminal, and signals its foreground job if
// that is another one.
func ResizeTerminal(fd int, size wire.TerminalSize) error {
	return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: size.Rows, Col: size.Columns})
}
