package livesandbox

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/redact"
	"github.com/caisson-run/caisson/sandbox"
)

// event is a line of a recording after the first one.
type event struct {
	at         float64
	kind, text string
}

// readRecording checks a recording's file against its description, and returns its events.
func readRecording(t *testing.T, dir string, info record.Recording) (header map[string]any, events []event) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, info.Path))
	if err != nil {
		t.Fatal(err)
	}
	if sum := sha256.Sum256(data); int64(len(data)) != info.Bytes || hex.EncodeToString(sum[:]) != info.SHA256 {
		t.Errorf("the file has %d bytes, described as %+v", len(data), info)
	}
	first, rest, _ := bytes.Cut(data, []byte("\n"))
	if err := json.Unmarshal(first, &header); err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(rest) {
		var e event
		if err := json.Unmarshal(line, &[]any{&e.at, &e.kind, &e.text}); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		events = append(events, e)
	}
	return header, events
}

func recordingExecutor(t *testing.T, secrets ...redact.Secret) (*Executor, string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, record.SpillDir), 0o700); err != nil {
		t.Fatal(err)
	}
	return &Executor{spill: newSpiller(dir, secrets)}, dir
}

// TestRecording checks times, sizes and characters that come in pieces.
func TestRecording(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, dir := recordingExecutor(t)
		r, err := x.StartRecording(sandbox.TerminalSize{Rows: 24, Columns: 80}, "xterm")
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range []string{"gr\xc3", "\xbcn\r\n", "\xff", "\xe4\xb8"} {
			_, _ = r.Write([]byte(text))
			time.Sleep(500 * time.Millisecond)
		}
		r.Resize(sandbox.TerminalSize{Rows: 30, Columns: 100})
		time.Sleep(time.Second)
		_, _ = r.Write([]byte("\x96end"))
		_, _ = r.Write([]byte("."))
		info := r.Close()
		header, events := readRecording(t, dir, info)
		if header["version"] != 2.0 || header["width"] != 80.0 || header["height"] != 24.0 || info.Truncated {
			t.Errorf("the recording is %v, %+v", header, info)
		}
		want := []event{{0, "o", "gr"}, {0.5, "o", "ün\r\n"}, {1, "o", "\ufffd"}, {2, "r", "100x30"}, {3, "o", "世end."}}
		if !slices.Equal(events, want) {
			t.Errorf("the events are %v, want %v", events, want)
		}
	})
}

// TestRecordingHidesSecrets checks that a secret is not recorded however it is cut, and that
// the rest is.
func TestRecordingHidesSecrets(t *testing.T) {
	const secret = "correct-horse-battery"
	for cut := range len(secret) {
		x, dir := recordingExecutor(t, redact.Secret{Name: "KEY", Value: secret})
		r, err := x.StartRecording(sandbox.TerminalSize{}, "")
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range []string{"before " + secret[:cut], secret[cut:] + " and ", "after"} {
			_, _ = r.Write([]byte(text))
		}
		_, events := readRecording(t, dir, r.Close())
		var text strings.Builder
		for _, e := range events {
			text.WriteString(e.text)
		}
		if got := text.String(); got != "before [redacted:KEY] and after" {
			t.Errorf("cut at %d: recorded is %q", cut, got)
		}
	}
}

// TestRecordingIsBounded checks that a flood ends the recording, whose lines stay whole.
func TestRecordingIsBounded(t *testing.T) {
	x, dir := recordingExecutor(t)
	r, err := x.StartRecording(sandbox.TerminalSize{}, "")
	if err != nil {
		t.Fatal(err)
	}
	piece := bytes.Repeat([]byte("flood "), 10_000)
	for range 2 * maxRecording / len(piece) {
		if n, err := r.Write(piece); n != len(piece) || err != nil {
			t.Fatal(n, err)
		}
	}
	info := r.Close()
	_, events := readRecording(t, dir, info)
	if !info.Truncated || info.Bytes > maxRecording || info.Bytes < maxRecording-100_000 || len(events) == 0 {
		t.Errorf("the recording is %+v with %d events", info, len(events))
	}
}

// TestRecordingOfManySizes resizes a terminal that shows nothing.
func TestRecordingOfManySizes(t *testing.T) {
	x, dir := recordingExecutor(t)
	r, err := x.StartRecording(sandbox.TerminalSize{}, "")
	if err != nil {
		t.Fatal(err)
	}
	_, _ = r.Write([]byte("before"))
	for i := range 10_000 {
		r.Resize(sandbox.TerminalSize{Rows: uint16(i), Columns: 9})
	}
	if len(r.marks) > 2 {
		t.Errorf("%d marks are kept", len(r.marks))
	}
	_, events := readRecording(t, dir, r.Close())
	if last := events[len(events)-1]; len(events) != 2 || last.kind != "r" || last.text != "9x9999" {
		t.Errorf("events %+v", events)
	}
}
