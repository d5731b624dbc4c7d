package file

import (
	"bytes"
	"encoding/json"
	"image/png"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"
)

// backtrack matches (a*)*b at the start of s by trying every way, up to a number of
// steps.
func backtrack(s string, steps *int) bool {
	if *steps--; *steps < 0 {
		return false
	}
	if strings.HasPrefix(s, "b") {
		return true
	}
	for n := 1; n <= len(s) && s[n-1] == 'a'; n++ {
		if backtrack(s[n:], steps) {
			return true
		}
	}
	return false
}

// The control of acceptance case A16: a backtracking engine does not finish the
// same pattern and line, which ours has answered by then.
func TestPatternControl(t *testing.T) {
	f := newFixture(t)
	line := strings.Repeat("a", 60)
	f.file("f", line+"\n"+line+"b\n")
	if got := f.text("grep", object{"pattern": "^((a*)*)*b", "path": "f"}); !strings.Contains(got, line+"b") {
		t.Errorf("grep: %q", got)
	}
	const plenty = 20_000_000
	steps := plenty
	if backtrack(line+"b", &steps); steps < plenty-1000 {
		t.Errorf("the control can't find what is there: %d steps", plenty-steps)
	}
	if steps = plenty; backtrack(line, &steps) || steps >= 0 {
		t.Errorf("control: an engine that tries every way ends after %d steps", plenty-steps)
	}
}

// The control of acceptance case A14: the raw bytes can't be sent to a model, and a
// decoder would allocate what a picture claims.
func TestContentControl(t *testing.T) {
	f := newFixture(t)
	const broken = "caf\xe9 \xc3\x28\n"
	f.file("latin", broken)
	f.must(os.WriteFile(filepath.Join(f.root, "bomb.png"), []byte(pngHeader(60000, 60000)), 0o600))
	if sent, err := json.Marshal(broken); err != nil || utf8.ValidString(broken) || strings.Contains(string(sent), "\xe9") {
		t.Errorf("control: the bytes pass as they are: %q, %v", sent, err)
	}
	if got := f.text("read_file", object{"path": "latin"}); !utf8.ValidString(got) || !strings.Contains(got, "lossy: 2 bytes") {
		t.Errorf("read: %q", got)
	}
	config, err := png.DecodeConfig(bytes.NewReader([]byte(f.content("bomb.png"))))
	if err != nil || config.Width*config.Height*4 < 1<<33 {
		t.Errorf("control: the picture claims %+v, %v", config, err)
	}
	if _, err := f.call("read_file", object{"path": "bomb.png"}); err == nil {
		t.Error("the picture was taken")
	}
}
