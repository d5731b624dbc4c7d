package trace

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/html"

	"github.com/caisson-run/caisson/runner/record"
)

// writeChain writes records with arbitrary payloads, in an intact chain: a
// hostile program's session, not a damaged one.
func writeChain(t *testing.T, path string, kinds []record.Kind, payloads [][]byte) {
	t.Helper()
	lines, err := encodeChain(kinds, payloads)
	if err != nil {
		t.Skip("no payload")
	}
	if err := os.WriteFile(path, bytes.Join(lines, nil), 0o600); err != nil {
		t.Fatal(err)
	}
}

// encodeChain returns the lines of records.
func encodeChain(kinds []record.Kind, payloads [][]byte) ([][]byte, error) {
	lines := make([][]byte, 0, len(payloads))
	prev := record.FirstHash
	for i, p := range payloads {
		text, err := record.Encode(record.Record{
			SchemaVersion: record.SchemaVersion, Seq: int64(i + 1), ID: "rec_1", Session: "ses_1", Actor: record.ActorTool, Kind: kinds[i], Payload: p, Prev: prev,
			Time: time.Date(2026, 11, 20, 10, 0, i, 0, time.UTC),
		})
		if err != nil {
			return nil, err
		}
		sum := sha256.Sum256(text)
		prev = hex.EncodeToString(sum[:])
		lines = append(lines, append(text, '\n'))
	}
	return lines, nil
}

// FuzzPayload reads records whose payloads are any JSON. Every reader comes to
// an end, and what it writes is whole.
func FuzzPayload(f *testing.F) {
	seeds := 0
	for i, p := range record.Payloads() {
		raw, err := json.Marshal(p)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(uint8(i), raw)
		seeds++
	}
	for _, text := range []string{
		`{"blocks":[{"tool_use":{"id":"tu_1","name":"<x>","input":{"a":[1]}}},{"tool_result":{"tool_use_id":"tu_1","content":[{"text":"</script>"}]}}],"role":"tool"}`,
		`{"spilled":[{"pointer":"/a/b","path":"../../../etc/passwd","bytes":-1,"sha256":""},{"pointer":"","path":"spill/..","bytes":9}]}`,
		`{"wall_ms":-9223372036854775808,"latency_ms":9223372036854775807,"start_ms":-1}`, `{"exit_code":1e400}`, `[]`, `null`,
	} {
		f.Add(uint8(2), []byte(text))
		seeds++
	}
	if seeds < 20 {
		f.Fatal("the seed corpus is empty")
	}
	f.Fuzz(func(t *testing.T, kind uint8, payload []byte) {
		if !json.Valid(payload) {
			return
		}
		all := record.Payloads()
		k := all[int(kind)%len(all)].Kind()
		dir := t.TempDir()
		path := filepath.Join(dir, record.TraceFile)
		writeChain(t, path, []record.Kind{k, record.KindTurnStarted, k, record.KindSessionEnded}, [][]byte{payload, []byte(`{}`), payload, []byte(`{}`)})
		s, err := Find(dir, path)
		if err != nil {
			t.Fatal(err)
		}
		var page, story, trajectory bytes.Buffer
		if _, err := HTML(&page, s); err != nil {
			t.Fatal(err)
		}
		doc, err := html.Parse(bytes.NewReader(page.Bytes()))
		if err != nil {
			t.Fatal(err)
		}
		for n := range doc.Descendants() {
			if n.Type == html.ElementNode && (n.Data == "script" || n.Data == "img" || n.Data == "iframe" || n.Data == "svg" && attribute(n, "class") != "timeline" && attribute(n, "class") != "turns") {
				t.Errorf("<%s> in the page", n.Data)
			}
		}
		if !strings.HasSuffix(strings.TrimSpace(page.String()), "</html>") {
			t.Error("the page has no end")
		}
		for _, out := range []*bytes.Buffer{&page, &story} {
			if out == &story {
				if _, err := Show(&story, s, ShowOptions{Full: true}); err != nil {
					t.Fatal(err)
				}
			}
			if hidden := findUnseen(out.Bytes()); hidden != "" {
				t.Error("characters that are not seen")
			}
		}
		if _, err := ATIF(&trajectory, s); err == nil && !json.Valid(trajectory.Bytes()) {
			t.Errorf("a trajectory that is no JSON: %s", trajectory.Bytes())
		}
		if _, err := Verify(s); err != nil {
			t.Fatal(err)
		}
	})
}
