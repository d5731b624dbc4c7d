package serve

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/spawn"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
)

// resize changes the size of the command's terminal while it runs.
func (c *command) resize(size wire.TerminalSize) {
	onDescriptor(c.terminal.Load(), func(fd int) { _ = spawn.ResizeTerminal(fd, size) }) // an ended one has no size
}

// typeEnd types the terminal's end-of-file character: twice in a line, since the
// first one only ends that. More would lose the first one in gVisor (20260905).
func (c *command) typeEnd(terminal *os.File, inLine bool) {
	var end byte // 0 is none
	onDescriptor(terminal, func(fd int) {
		if mode, err := unix.IoctlGetTermios(fd, unix.TCGETS); err == nil {
			end = mode.Cc[unix.VEOF]
		}
	})
	if end == 0 {
		return
	}
	keys := []byte{end}
	if inLine {
		keys = append(keys, end)
	}
	_ = c.writeAll(terminal, keys) // a program that has ended reads none
}

// onDescriptor calls f with the descriptor of a file that may be nil or closed.
func onDescriptor(file *os.File, f func(fd int)) {
	if raw, err := file.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { f(int(fd)) })
	}
}
