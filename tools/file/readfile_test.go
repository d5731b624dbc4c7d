package file

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"image"
	"image/gif"
	"image/jpeg"
	"image/png"
	"io"
	"maps"
	"math"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"unicode/utf16"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/internal/picture"
)

func lines(from, to int) string {
	var b strings.Builder
	for i := from; i <= to; i++ {
		fmt.Fprintf(&b, "line %d\n", i)
	}
	return b.String()
}

func wide(order binary.AppendByteOrder, mark uint16, s string) string {
	b := order.AppendUint16(nil, mark)
	for _, u := range utf16.Encode([]rune(s)) {
		b = order.AppendUint16(b, u)
	}
	return string(b)
}

func TestReadFileText(t *testing.T) {
	f := newFixture(t)
	long := strings.Repeat("ä", 2000)
	for _, c := range []struct {
		name    string
		content string
		input   object
		want    string
		fails   bool // without success
		cut     bool
	}{
		{name: "whole", content: "a\nb\n", want: "a\nb\n"},
		{name: "no newline at the end", content: "a\nb", want: "a\nb"},
		{name: "empty", content: "", want: "[the file is empty]"},
		{name: "numbers", content: "a\n\nb", input: object{"line_numbers": true}, want: "     1\ta\n     2\t\n     3\tb"},
		{name: "from", content: lines(1, 5), input: object{"offset": 4}, want: lines(4, 5) + "[lines 4 to 5, the end of the file]\n"},
		{name: "some", content: lines(1, 5), input: object{"offset": 2, "limit": 2}, want: lines(2, 3) + "[lines 2 to 3 of 5, 35 bytes in all; go on with offset 4]\n", cut: true},
		{name: "first", content: "a\nb", input: object{"limit": 1}, want: "a\n[lines 1 to 1 of 2, 3 bytes in all; go on with offset 2]\n", cut: true},
		{name: "last", content: "a\nb", input: object{"offset": 2}, want: "b\n[lines 2 to 2, the end of the file]\n"},
		{name: "beyond", content: "a\nb\n", input: object{"offset": 9}, want: "[offset 9 is beyond the end: the file has 2 lines]", fails: true},
		{name: "huge numbers", content: "a\n", input: object{"offset": 1, "limit": float64(1 << 62)}, want: "a\n"},
		{name: "huge offset", content: "a\n", input: object{"offset": math.MaxInt64}, want: "[offset 1073741824 is beyond the end: the file has 1 line]", fails: true},
		{name: "many lines", content: lines(1, 2500), want: lines(1, 2000) + "[lines 1 to 2000 of 2500, 23893 bytes in all; go on with offset 2001]\n", cut: true},
		{name: "CRLF", content: "a\r\nb\r\n", want: "a\r\nb\r\n[lines end in \\r\\n]\n"},
		{name: "lone CR", content: "a\rb", want: "a\rb"},
		{name: "byte order mark", content: "\ufeffa\n", want: "\ufeffa\n[the file starts with a UTF-8 byte order mark]\n"},
		{
			name: "no UTF-8", content: "caf\xe9\xff " + strings.Repeat("x", 50) + "\n",
			want: "caf�� " + strings.Repeat("x", 50) + "\n[lossy: 2 bytes that are not UTF-8 shown as �, 0 NULs as ␀; don't patch or rewrite what holds them]\n",
		},
		{
			name: "a NUL", content: strings.Repeat("text ", 50) + "\x00\n",
			want: strings.Repeat("text ", 50) + "␀\n[lossy: 0 bytes that are not UTF-8 shown as �, 1 NUL as ␀; don't patch or rewrite what holds them]\n",
		},
		{name: "long line", content: long + "\nb\n", want: strings.Repeat("ä", 1000) + " [… 2000 more bytes of this line]\nb\n[1 line longer than 2000 bytes shortened]\n", cut: true},
		{name: "long line, cut in a rune", content: "x" + long + "\n", want: "x" + strings.Repeat("ä", 999) + " [… 2002 more bytes of this line]\n[1 line longer than 2000 bytes shortened]\n", cut: true},
		{name: "UTF-16 LE", content: wide(binary.LittleEndian, 0xfeff, "grüß 😀\n"), want: "grüß 😀\n[decoded from UTF-16; patch_file works on the file's own bytes and will not find this text]\n"},
		{name: "UTF-16 BE", content: wide(binary.BigEndian, 0xfeff, "a\nb\n"), input: object{"offset": 2}, want: "b\n[lines 2 to 2, the end of the file]\n[decoded from UTF-16; patch_file works on the file's own bytes and will not find this text]\n"},
		{name: "UTF-16, broken", content: "\xff\xfe\x00\xd8a", want: "�\n[decoded from UTF-16; patch_file works on the file's own bytes and will not find this text]\n[lossy: 2 places not valid UTF-16 shown as �]\n"},
		{name: "binary", content: "\x7fELF\x02\x01\x01\x00\xff\"", want: "[binary file, 10 bytes, application/octet-stream; not shown. Its first 10 bytes, escaped:]\n\"\\x7fELF\\x02\\x01\\x01\\x00\\xff\\\"\"\n"},
		{name: "svg", content: `<svg width="60000" height="60000"/>`, want: `<svg width="60000" height="60000"/>`},
		{name: "deep JSON", content: strings.Repeat("[", 1_000_000), want: strings.Repeat("[", 2000) + " [… 998000 more bytes of this line]\n[1 line longer than 2000 bytes shortened]\n", cut: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			f.t = t
			f.file("f", c.content)
			input := object{"path": "f"}
			maps.Copy(input, c.input)
			out, err := f.call("read_file", input)
			f.must(err)
			if out.Content[0].Text != c.want || out.Success == c.fails || out.Truncated != c.cut {
				t.Errorf("read %v: success %v, truncated %v\n%.300q\nwant\n%.300q", input, out.Success, out.Truncated, out.Content[0].Text, c.want)
			}
			if !utf8.ValidString(out.Content[0].Text) {
				t.Error("the text is not UTF-8")
			}
		})
	}
}

// Acceptance A11, A14: files too large to be held.
func TestReadFileHuge(t *testing.T) {
	f := newFixture(t)
	f.file("sparse", "")
	f.must(os.Truncate(filepath.Join(f.root, "sparse"), 1<<40))
	f.file("lines", strings.Repeat(strings.Repeat("x", 99)+"\n", 200_000))
	line, err := os.Create(filepath.Join(f.root, "line"))
	f.must(err)
	_, err = line.WriteString("x\n")
	for block := bytes.Repeat([]byte("y"), 4<<20); err == nil; {
		if at, _ := line.Seek(0, io.SeekCurrent); at > 200<<20 {
			break
		}
		_, err = line.Write(block)
	}
	f.must(errors.Join(err, line.Close()))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)

	if got := f.text("read_file", object{"path": "sparse"}); !strings.HasPrefix(got, "[binary file, 1099511627776 bytes") {
		t.Errorf("sparse file: %.100q", got)
	}
	got := f.text("read_file", object{"path": "lines"})
	if len(got) > tools.DefaultResultBytes || !strings.HasSuffix(got, "[lines 1 to 480 of 200000, 20000000 bytes in all; go on with offset 481]\n") {
		t.Errorf("many lines: %d bytes, …%q", len(got), got[len(got)-100:])
	}
	got = f.text("read_file", object{"path": "lines", "offset": 199_999})
	if strings.Count(got, "\n") != 3 {
		t.Errorf("the last lines: %q", got)
	}
	got = f.text("read_file", object{"path": "line"})
	if len(got) > 3000 || !strings.Contains(got, "more bytes of this line]") {
		t.Errorf("long line: %d bytes, %.100q", len(got), got)
	}
	runtime.ReadMemStats(&after)
	if d := int64(after.HeapSys) - int64(before.HeapSys); d > 64<<20 {
		t.Errorf("the heap grew by %d bytes", d)
	}
}

// TestReadFileNotRegular is acceptance case A9 for each tool that reads: non-files
// are refused by name, and skipped by searches, without waiting.
func TestReadFileNotRegular(t *testing.T) {
	f := newFixture(t)
	f.must(unix.Mkfifo(filepath.Join(f.root, "fifo"), 0o644))
	listener, err := net.Listen("unix", filepath.Join(f.root, "socket"))
	f.must(err)
	defer func() { _ = listener.Close() }()
	names := []string{"fifo", "socket"}
	if unix.Mknod(filepath.Join(f.root, "zero"), unix.S_IFCHR|0o644, int(unix.Mkdev(1, 5))) == nil { // an ordinary user may not
		names = append(names, "zero")
	}
	f.file("plain", "needle\n")
	for _, name := range names {
		_, err := f.call("read_file", object{"path": name})
		if class, reason, _ := f.refused(err); class != tools.ErrorExecution || reason != "not_regular" {
			t.Errorf("read of a %s: %v", name, err)
		}
		if out, err := f.call("grep", object{"pattern": "needle", "path": name}); err == nil && strings.Contains(out.Content[0].Text, "needle") {
			t.Errorf("grep in a %s: %q", name, out.Content[0].Text)
		}
		if got := f.text("list_dir", object{}); !strings.Contains(got, name) {
			t.Errorf("the listing lacks the %s: %q", name, got)
		}
	}
	if got := f.text("grep", object{"pattern": "needle"}); !strings.Contains(got, "plain") {
		t.Errorf("grep beside them: %q", got)
	}
	if got := f.text("glob", object{"pattern": "**"}); !strings.Contains(got, "plain") {
		t.Errorf("glob beside them: %q", got)
	}
}

func TestReadFilePictures(t *testing.T) {
	small := image.NewGray(image.Rect(0, 0, 3, 2))
	var p, j, g bytes.Buffer
	f := newFixture(t)
	f.must(png.Encode(&p, small))
	f.must(jpeg.Encode(&j, small, nil))
	f.must(gif.Encode(&g, small, nil))
	unbase := func(s string) string {
		b, err := base64.StdEncoding.DecodeString(s)
		f.must(err)
		return string(b)
	}
	// 1 × 1 pixels, lossy and lossless, as in the format's test files.
	lossy := unbase("UklGRiIAAABXRUJQVlA4IBYAAAAwAQCdASoBAAEADsD+JaQAA3AAAAAA")
	lossless := unbase("UklGRhoAAABXRUJQVlA4TA0AAAAvAAAAEAcQERGIiP4HAA==")
	extended := "RIFF\x1e\x00\x00\x00WEBPVP8X\x0a\x00\x00\x00\x00\x00\x00\x00\x3f\x1f\x00\x02\x00\x00"
	for _, c := range []struct {
		name, content, media, size string
		reason                     string
		text                       string
	}{
		{name: "png", content: p.String(), media: "image/png", size: "3 × 2"},
		{name: "jpeg", content: j.String(), media: "image/jpeg", size: "3 × 2"},
		{name: "gif", content: g.String(), media: "image/gif", size: "3 × 2"},
		{name: "webp, lossy", content: lossy, media: "image/webp", size: "1 × 1"},
		{name: "webp, lossless", content: lossless, media: "image/webp", size: "1 × 1"},
		{name: "webp, extended", content: extended, media: "image/webp", size: "8000 × 3"},
		{name: "png bomb", content: pngHeader(60000, 60000), reason: "too_large"},
		{name: "png too wide", content: pngHeader(8001, 1), reason: "too_large"},
		{name: "webp bomb", content: strings.Replace(extended, "\x3f\x1f\x00", "\xff\xff\xff", 1), reason: "too_large"},
		{name: "png, too many bytes", content: p.String() + strings.Repeat("x", picture.MaxBytes), reason: "too_large"},
		{name: "png, cut off", content: p.String()[:20], text: "it looks like image/png but is not a picture"},
		{name: "jpeg, only the start", content: "\xff\xd8\xff", text: "it looks like image/jpeg"},
		{name: "webp, no chunk", content: "RIFF\x1e\x00\x00\x00WEBPVP8Z" + strings.Repeat("\x00", 20), text: "[binary file"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f.t = t
			f.file("f", c.content)
			out, err := f.call("read_file", object{"path": "f"})
			if c.reason != "" {
				if _, reason, _ := f.refused(err); reason != c.reason {
					t.Errorf("read: %v, want reason %s", err, c.reason)
				}
				return
			}
			f.must(err)
			if c.text != "" {
				if len(out.Content) != 1 || !strings.Contains(out.Content[0].Text, c.text) {
					t.Errorf("read: %+v, want %q", out.Content, c.text)
				}
				return
			}
			if len(out.Content) != 2 || string(out.Content[1].Image) != c.content || out.Content[1].MediaType != c.media || !strings.Contains(out.Content[0].Text, c.size+" pixels") {
				t.Errorf("read: %q, %d blocks", out.Content[0].Text, len(out.Content))
			}
		})
	}
}

// pngHeader is a PNG that claims a size and has no pixels.
func pngHeader(w, h uint32) string {
	chunk := []byte("IHDR")
	chunk = binary.BigEndian.AppendUint32(chunk, w)
	chunk = binary.BigEndian.AppendUint32(chunk, h)
	chunk = append(chunk, 8, 2, 0, 0, 0)
	b := append([]byte("\x89PNG\r\n\x1a\n\x00\x00\x00\r"), chunk...)
	return string(binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(chunk)))
}

// FuzzReadFile shows any bytes; the result is bounded UTF-8.
func FuzzReadFile(f *testing.F) {
	seeds := []string{"", "a\nb", "\xff\xfea", "\xfe\xff", "\x89PNG\r\n\x1a\n", pngHeader(1, 1), "RIFF....WEBPVP8X", "\x00", "a\r\n\xff", strings.Repeat("ä", 1500), "GIF89a", "\xff\xd8\xff\xe0"}
	if len(seeds) == 0 {
		f.Fatal("no seeds")
	}
	for i, s := range seeds {
		f.Add([]byte(s), int64(i%3+1), int64(i))
	}
	fix := newFixture(f)
	f.Fuzz(func(t *testing.T, content []byte, offset, limit int64) {
		fix := *fix
		fix.t = t
		fix.file("f", string(content))
		out, err := fix.call("read_file", object{"path": "f", "offset": offset, "limit": limit, "line_numbers": limit%2 == 0})
		if err != nil {
			fix.refused(err)
			return
		}
		if text := out.Content[0].Text; !utf8.ValidString(text) || len(text) > tools.DefaultResultBytes {
			t.Errorf("%d bytes of text, valid %v", len(text), utf8.ValidString(text))
		}
	})
}
