// Package emulator draws the screen of a terminal from the output of programs, which is
// not trusted. The emulator itself is foreign code: callers must recover from its panics.
package emulator

import (
	"errors"
	"io"
	"strings"
	"time"

	"github.com/charmbracelet/x/vt"
)

// Emulator is a terminal without a user.
type Emulator = vt.Emulator

// New returns an emulator with an empty screen. Nobody reads its answers to the queries of
// programs, so they are dropped.
func New(columns, rows int) *Emulator {
	e := vt.NewEmulator(columns, rows)
	e.SetScrollbackSize(1)
	if answers, ok := e.InputPipe().(io.Closer); ok {
		_ = answers.Close() // a pipe, which can be closed
	}
	return e
}

// pieceBytes is what the emulator gets at once.
const pieceBytes = 1 << 10

var errTooLong = errors.New("the terminal's output takes too long to draw")

// Play writes output to an emulator. It stops with an error at a time, because short
// sequences can be much work.
func Play(e *Emulator, output string, until time.Time) error {
	for output != "" {
		if time.Now().After(until) {
			return errTooLong
		}
		n := min(len(output), pieceBytes)
		if i := strings.IndexByte(output[min(n, pieceBytes/8):n], '\x1b'); i >= 0 {
			n = pieceBytes/8 + i
		}
		_, _ = e.WriteString(output[:n]) // it fails only once it is closed
		output = output[n:]
	}
	return nil
}
