package guest

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/caisson-run/caisson/sandbox/guest/wire"
	"github.com/caisson-run/caisson/tools/workspace"
)

// fileLine is the line before a file of size bytes, of which length follow.
func fileLine(size, length int) string {
	return fmt.Sprintf(`{"info":{"type":"file","size":%d,"mode":420,"modified":[1700000000,5]},"length":%d}`+"\n", size, length)
}

const goneLine = `{"error":{"kind":"not_found","path":"/etc/x","detail":"gone"}}` + "\n"

// TestFilesOfARead checks that an answer may come in any pieces.
func TestFilesOfARead(t *testing.T) {
	answer := fileLine(5, 5) + "one\n\n" + goneLine + fileLine(0, 0) + fileLine(100, 0)
	for piece := 1; piece <= len(answer); piece++ {
		var got []string
		f := filesReader{count: 4, most: 10, each: func(i int, f workspace.File, err error) {
			got = append(got, fmt.Sprintf("%d %q %d %v", i, f.Data, f.Size, err != nil))
		}}
		for rest := answer; rest != ""; {
			n := min(piece, len(rest))
			if err := f.takeData([]byte(rest[:n])); err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
		want := `0 "one\n\n" 5 false, 1 "" 0 true, 2 "" 0 false, 3 "" 100 false`
		if err := f.checkWhole(false); err != nil || strings.Join(got, ", ") != want {
			t.Fatalf("in pieces of %d: %s, %v", piece, strings.Join(got, ", "), err)
		}
	}
}

// TestFilesOfAReadLie has the test above as its control.
func TestFilesOfAReadLie(t *testing.T) {
	one := fileLine(1, 1) + "x"
	for name, tt := range map[string]struct {
		answer string
		more   bool
	}{
		"more files than were asked for":    {one + one + one, false},
		"fewer files":                       {one, false},
		"no file":                           {"", true},
		"more where there is none":          {one + one, true},
		"more bytes than were asked for":    {fileLine(1, 11), true},
		"bytes of a file that is too large": {fileLine(100, 1) + "x", true},
		"negative length":                   {fileLine(1, -1), true},
		"negative size":                     {fileLine(-1, 0), true},
		"cut off":                           {one + fileLine(3, 3) + "xx", true},
		"cut off in a line":                 {one + `{"info"`, true},
		"a long line":                       {strings.Repeat(" ", wire.MaxEntryLine+1), true},
		"neither file nor error":            {"{}\n", true},
		"not JSON":                          {"{\n", true},
		"both":                              {strings.Replace(goneLine, "{", `{"info":{"type":"file","mode":420,"modified":[0,0]},`, 1), true},
		"bytes of an error":                 {strings.Replace(goneLine, "{", `{"length":1,`, 1) + "x", true},
		"an unknown error":                  {strings.Replace(goneLine, "not_found", "root", 1), true},
		"a mount without an error":          {strings.Replace(fileLine(0, 0), "{", `{"mount":true,`, 1), true},
		"a directory":                       {`{"info":{"type":"dir","mode":2147483648,"modified":[0,0]}}` + "\n", true},
		"a directory's mode":                {`{"info":{"type":"file","mode":2147483648,"modified":[0,0]}}` + "\n", true},
	} {
		f := filesReader{count: 2, most: 10, each: func(int, workspace.File, error) {}}
		err := f.takeData([]byte(tt.answer))
		if err == nil {
			err = f.checkWhole(tt.more)
		}
		if !errors.Is(err, wire.ErrProtocol) {
			t.Errorf("%s: error is %v", name, err)
		}
	}
}
