package trace

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/html"

	"github.com/caisson-run/caisson/runner/record"
)

// cast returns a recording of texts, one each 100 ms.
func cast(rows int, texts ...string) []byte {
	out := fmt.Appendf(nil, `{"version":2,"width":40,"height":%d,"timestamp":1}`+"\n", rows)
	for i, text := range texts {
		line, err := json.Marshal([]any{float64(i) / 10, "o", text})
		if err != nil {
			panic(err)
		}
		out = append(append(out, line...), '\n')
	}
	return out
}

// newRecordedSession returns a session with a command whose terminal was recorded.
func newRecordedSession(t *testing.T, recording []byte) Session {
	t.Helper()
	return recordedSession(t, recording, func(r *record.Recording) record.Payload {
		return record.UserCommandEnded{ExecID: "exe_1", Recording: r}
	})
}

func recordedSession(t *testing.T, recording []byte, end func(*record.Recording) record.Payload) Session {
	t.Helper()
	w := newWriter(t, t.TempDir())
	sum := sha256.Sum256(recording)
	r := &record.Recording{Path: filepath.Join("spill", "command-0001-terminal.cast"), Bytes: int64(len(recording)), SHA256: hex.EncodeToString(sum[:])}
	if err := os.MkdirAll(filepath.Join(w.dir, "spill"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(w.dir, r.Path), recording, 0o600); err != nil {
		t.Fatal(err)
	}
	w.put(0, record.ActorSystem, record.SessionCreated{Task: "shell"})
	w.put(0, record.ActorUser, record.UserCommandStarted{ExecID: "exe_1", Argv: []string{"sh"}})
	w.put(time.Second, record.ActorUser, end(r))
	return w.close()
}

// pageOf returns a session's page, and the texts of the screens on it.
func pageOf(t *testing.T, s Session) (page []byte, screens []string) {
	t.Helper()
	var out bytes.Buffer
	if _, err := HTML(&out, s); err != nil {
		t.Fatal(err)
	}
	doc, err := html.Parse(bytes.NewReader(out.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	for n := range doc.Descendants() {
		if n.Type == html.ElementNode && n.Data == "pre" && n.Parent.Type == html.ElementNode && attribute(n.Parent, "class") == "reel" {
			var text strings.Builder
			for c := range n.Descendants() {
				if c.Type == html.TextNode {
					text.WriteString(c.Data)
				}
			}
			screens = append(screens, text.String())
		}
	}
	return out.Bytes(), screens
}

func attribute(n *html.Node, key string) string {
	for _, a := range n.Attr {
		if a.Key == key {
			return a.Val
		}
	}
	return ""
}

// TestFilm plays a recording: what programs write becomes screens, with colours and without what was
// overwritten, and a resize changes them.
func TestFilm(t *testing.T) {
	recording := cast(4, "one\r\n", "\x1b[31;1mred\x1b[0m \x1b[7mback\x1b[m\r\n", "\x1b[c\x1b[6n", "wide 漢字 é\r\n", "\x1b[2J\x1b[H\r\nlast")
	recording = append(recording, []byte("[1.0,\"r\",\"10x2\"]\n[100000,\"o\",\"!\"]\n")...)
	page, screens := pageOf(t, newRecordedSession(t, recording))
	want := []string{"one", "one\nred back", "one\nred back\nwide 漢字 é", "\nlast", "\nlast!"}
	if diff := cmp.Diff(want, screens[len(screens)-len(want):]); diff != "" {
		t.Errorf("screens (-want +got):\n%s", diff)
	}
	for _, text := range []string{`color:#800000;font-weight:700">red</span>`, `<span style="color:#111;background:#ddd">back</span>`, "--rows:4;--seconds:4s", "; style-src-attr 'unsafe-inline';"} {
		if !strings.Contains(string(page), text) {
			t.Errorf("the page lacks %s", text)
		}
	}
}

// TestFilmOfABackgroundCommand plays what a terminal of the model showed.
func TestFilmOfABackgroundCommand(t *testing.T) {
	_, screens := pageOf(t, recordedSession(t, cast(4, "one"), func(r *record.Recording) record.Payload {
		return record.BackgroundEnded{Handle: "background-1", Recording: r}
	}))
	if len(screens) == 0 || screens[len(screens)-1] != "one" {
		t.Errorf("screens %q", screens)
	}
}

// TestFilmsAreBounded makes films of much output, of large screens and of large cells.
func TestFilmsAreBounded(t *testing.T) {
	for name, text := range map[string]func(i int) string{
		"many":   func(i int) string { return fmt.Sprintf("line %d\r\n", i) },
		"colour": func(i int) string { return strings.Repeat(fmt.Sprintf("\x1b[38;2;%d;9;9mx\x1b[39my", i%256), 60) },
		"marks":  func(int) string { return strings.Repeat("e"+strings.Repeat("\u0301", 100), 30) },
	} {
		t.Run(name, func(t *testing.T) {
			var texts []string
			for i := range 2000 {
				texts = append(texts, text(i))
			}
			recording := cast(50, texts...)
			if len(recording) > maxCast {
				recording = recording[:bytes.LastIndexByte(recording[:maxCast], '\n')+1]
			}
			page, screens := pageOf(t, newRecordedSession(t, recording))
			if len(page) > maxFilm+100_000 || len(screens) > maxScreens || len(screens) < 2 {
				t.Errorf("%d screens in a page of %d bytes", len(screens), len(page))
			}
			if name == "many" && (!strings.HasSuffix(screens[len(screens)-1], "line 1999") || len(screens) < maxScreens/3) {
				t.Errorf("%d screens, and the last is %q", len(screens), screens[len(screens)-1])
			}
		})
	}
}

// TestHostileFilms plays recordings full of what would be elements, or would keep or break an emulator.
// The page has the same elements as with a harmless word, and is made in time.
func TestHostileFilms(t *testing.T) {
	word, _ := pageOf(t, newRecordedSession(t, cast(5, "word")))
	want := pageShape(t, word)
	for _, text := range hostile {
		page, screens := pageOf(t, newRecordedSession(t, cast(5, "\x1b[H"+text)))
		got := pageShape(t, page)
		if strings.Contains(text, "\x1b[31m") {
			continue // its colour is an element
		}
		if diff := cmp.Diff(want, got); diff != "" || findUnseen(page) != "" || len(screens) != 1 {
			t.Errorf("%q: %d screens, %s (-word +hostile):\n%s", text, len(screens), findUnseen(page), diff)
		}
	}
	for name, recording := range map[string][]byte{
		"repeats":     cast(100, strings.Repeat("x\x1b[65535b", 200_000)),
		"scrolls":     cast(100, strings.Repeat("\x1b[65535S\x1b[65535L\x1b[65535P\x1b[65535@\x1b[65535X", 20_000)),
		"queries":     cast(100, strings.Repeat("\x1b[c\x1b[5n\x1b[6n\x1b]11;?\x07\x1bP$qm\x1b\\", 20_000)),
		"margins":     cast(3, "\x1b[9;2r\x1b[?69h\x1b[9;1s\x1b[999;999H\x1bM\x1b[L\x1b[M\x1bD\x1b[?6h\x1b[H\x1b8\x1b[I\x1b[65535I\x1b[65535Z"),
		"an open OSC": cast(3, "\x1b]0;"+strings.Repeat("x", 5<<20)),
		"tiny":        []byte(`{"version":2,"width":-1,"height":0}` + "\n" + `[0,"o","x"]` + "\n" + `[1,"r","0x0"]` + "\n" + `[2,"r","99999x99999"]` + "\n" + `[3,"o","\u001b[999;999Hx"]` + "\n"),
		"times":       []byte(`{"version":2,"width":9,"height":9}` + "\n" + `[1e300,"o","x"]` + "\n" + `[-5,"o","y"]` + "\n" + `[{},"o",7]` + "\n"),
		"no cast":     []byte("x"),
		"empty":       {},
		"a cut line":  append(cast(3, "x"), `[1,"o"`...),
	} {
		began := time.Now()
		page, screens := pageOf(t, newRecordedSession(t, recording))
		if took := time.Since(began); took > 3*filmTime || len(screens) == 0 && !strings.Contains(string(page), "be played") {
			t.Errorf("%s: %d screens after %v", name, len(screens), took)
		}
	}
}

// TestChangedRecording changes a recording behind the records' back, removes it, and names another file.
func TestChangedRecording(t *testing.T) {
	s := newRecordedSession(t, cast(5, "word"))
	file := filepath.Join(s.Dir, "spill", "command-0001-terminal.cast")
	if err := os.WriteFile(file, cast(5, "lies"), 0o600); err != nil {
		t.Fatal(err)
	}
	if page, screens := pageOf(t, s); len(screens) != 0 || !strings.Contains(string(page), "the recording was changed") || strings.Contains(string(page), "lies") {
		t.Errorf("a changed recording: %q", screens)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if page, screens := pageOf(t, s); len(screens) != 0 || strings.Contains(string(page), `class="film"`) {
		t.Errorf("a removed recording: %q", screens)
	}
	if ReadFilm(s, Step{Recording: &record.Recording{Path: "../../etc/passwd"}}) != nil || ReadFilm(s, Step{Recording: &record.Recording{Path: "/etc/passwd"}}) != nil {
		t.Error("it reads a file that is not the session's")
	}
}
