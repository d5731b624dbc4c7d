package transfer

import (
	"bytes"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/caisson-run/caisson/sandbox/guest/archive"
)

// TestStatus checks that a whole archive that lacks a file has another status
// than one that was cut off.
func TestStatus(t *testing.T) {
	deep, whole := t.TempDir(), t.TempDir()
	in, err := os.OpenRoot(deep)
	for range 20 { // the last ones have a path that is too long to be read
		name := strings.Repeat("d", 250)
		var below *os.Root
		if err == nil {
			err = in.Mkdir(name, 0o755)
		}
		if err == nil {
			below, err = in.OpenRoot(name)
		}
		if err != nil {
			t.Fatal(err)
		}
		in = below
	}
	for _, word := range [][]string{{archive.PackWord}, {archive.PackChangesWord, "0", "0"}} {
		for _, c := range []struct {
			dir  string
			out  io.Writer
			want int
		}{{whole, io.Discard, 0}, {deep, io.Discard, archive.StatusIncomplete}, {whole, full{}, failed}, {deep, full{}, failed}} {
			var text bytes.Buffer
			argv := append(append([]string{"guest"}, word...), c.dir)
			if got := (Command{Argv: argv, Stdout: c.out, Stderr: &text}).Run(); got != c.want {
				t.Errorf("%s %.60s: status %d, want %d: %.200s", word[0], c.dir, got, c.want, text.String())
			}
		}
	}
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("full") }
