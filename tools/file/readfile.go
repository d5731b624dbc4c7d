package file

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/internal/picture"
	"github.com/caisson-run/caisson/tools/workspace"
)

// Other agents have the same default.
const (
	defaultLines = 2000
	maxLines     = 1 << 30
)

// sampleBytes is the sample from which a file's type is guessed; git reads 8000
// bytes.
const sampleBytes = 8000

func readFileDefinition() tools.Definition {
	return tools.Definition{
		Name: tools.NameReadFile,
		Description: "Reads a file of the workspace. Text is returned as it is, from line `offset` on, `limit` lines of it " +
			"(2000 when left out); a note in square brackets at the end reports that there is more, that long lines were " +
			"shortened, or that bytes are not UTF-8. Pictures (PNG, JPEG, GIF, WebP) are shown as pictures, other binary files are " +
			"only described. Paths are relative to the workspace.",
		InputSchema: json.RawMessage(`{
  "type": "object",
  "properties": {
    "path": {"type": "string", "minLength": 1, "description": "The file, relative to the workspace."},
    "offset": {"type": "integer", "minimum": 1, "description": "The first line to read, counted from 1."},
    "limit": {"type": "integer", "minimum": 1, "description": "How many lines to read."},
    "line_numbers": {"type": "boolean", "description": "Put its number and a tab before each line. They are not part of the file: leave them out of a patch."}
  },
  "required": ["path"],
  "additionalProperties": false
}`),
		Aliases: pathAliases(map[string]string{"start_line": "offset", "max_lines": "limit", "numbers": "line_numbers"}),
		Paths:   onePath(""),
	}
}

type readFileInput struct {
	Path    string `json:"path"`
	Offset  count  `json:"offset"`
	Limit   count  `json:"limit"`
	Numbers bool   `json:"line_numbers"`
}

func (r *readers) readFile(ctx context.Context, in readFileInput) (tools.Output, error) {
	head, err := r.view.ReadFile(ctx, in.Path, 0, sampleBytes)
	if err != nil {
		return tools.Output{}, err
	}
	w := window{from: in.Offset.orDefault(1, maxLines), count: in.Limit.orDefault(defaultLines, maxLines), numbers: in.Numbers}
	switch {
	case len(head.Data) == 0:
		return textOutput("[the file is empty]"), nil
	case picture.Type(head.Data) != "":
		return r.readPicture(ctx, head)
	case bytes.HasPrefix(head.Data, []byte{0xff, 0xfe}), bytes.HasPrefix(head.Data, []byte{0xfe, 0xff}):
		return r.showUTF16(ctx, head, w)
	case isBinary(head.Data):
		return describeFile(head), nil
	}
	stream := &fileStream{ctx: ctx, reader: r.view, path: in.Path}
	v, err := w.readView(stream)
	if err != nil {
		return tools.Output{}, err
	}
	out := w.output(v, head)
	if bytes.HasPrefix(head.Data, []byte("\ufeff")) {
		addNote(&out, "the file starts with a UTF-8 byte order mark")
	}
	return out, nil
}

// showUTF16 shows a UTF-16 text, unless it is too large to decode as a whole.
func (r *readers) showUTF16(ctx context.Context, head workspace.File, w window) (tools.Output, error) {
	whole, err := r.view.ReadFile(ctx, head.Path, 0, workspace.DefaultMaxFileBytes)
	if err != nil {
		return tools.Output{}, err
	}
	if whole.Truncated {
		return describeFile(head), nil
	}
	decoded, bad := decodeUTF16(whole.Data)
	v, err := w.readView(strings.NewReader(decoded))
	if err != nil {
		return tools.Output{}, err
	}
	out := w.output(v, head)
	addNote(&out, "decoded from UTF-16; patch_file works on the file's own bytes and will not find this text")
	if bad > 0 {
		addNote(&out, "lossy: "+limits.FormatCount(bad, "place")+" not valid UTF-16 shown as �")
	}
	return out, nil
}

func decodeUTF16(b []byte) (decoded string, bad int) {
	var order binary.ByteOrder = binary.LittleEndian
	if b[0] == 0xfe {
		order = binary.BigEndian
	}
	if len(b)%2 != 0 {
		bad++
	}
	units := make([]uint16, 0, len(b)/2)
	for b = b[2:]; len(b) >= 2; b = b[2:] {
		units = append(units, order.Uint16(b))
	}
	runes := utf16.Decode(units)
	for _, r := range runes {
		if r == utf8.RuneError {
			bad++
		}
	}
	return string(runes), bad
}

func (w window) output(v *view, f workspace.File) tools.Output {
	out := textOutput(v.text.String())
	total, lines := strconv.Itoa(v.lines), limits.FormatCount(v.lines, "line")
	if !v.whole {
		total = "more than " + total
	}
	switch {
	case v.last == 0:
		where := "the end: the file has " + lines
		if !v.whole {
			where = fmt.Sprintf("the first %d MiB of the file, which is all that is read; use the shell", scanBytes>>20)
		}
		out = textOutput(fmt.Sprintf("[offset %d is beyond %s]", w.from, where))
		out.Success = false
		return out
	case v.last < v.lines || !v.whole:
		out.Truncated = true
		addNote(&out, fmt.Sprintf("lines %d to %d of %s, %d bytes in all; go on with offset %d", w.from, v.last, total, f.Size, v.last+1))
	case w.from > 1:
		addNote(&out, fmt.Sprintf("lines %d to %d, the end of the file", w.from, v.last))
	}
	if v.cutLines > 0 {
		out.Truncated = true
		addNote(&out, limits.FormatCount(v.cutLines, "line")+" longer than "+strconv.Itoa(lineBytes)+" bytes shortened")
	}
	if v.badBytes+v.nuls > 0 {
		addNote(&out, fmt.Sprintf("lossy: %s that are not UTF-8 shown as �, %s as ␀; don't patch or rewrite what holds them",
			limits.FormatCount(v.badBytes, "byte"), limits.FormatCount(v.nuls, "NUL")))
	}
	if v.crlf > 0 {
		addNote(&out, `lines end in \r\n`)
	}
	return out
}

// addNote appends a line in brackets.
func addNote(out *tools.Output, s string) {
	t := &out.Content[0].Text
	if *t != "" && !strings.HasSuffix(*t, "\n") {
		*t += "\n"
	}
	*t += "[" + s + "]\n"
}

// isBinary reports whether a sample has more than a few control characters or
// invalid UTF-8 bytes.
func isBinary(sample []byte) bool {
	bad, _ := countInvalid(sample)
	odd := 0
	for _, c := range sample {
		if c < ' ' && !bytes.ContainsRune([]byte("\t\n\v\f\r\b\x1b"), rune(c)) {
			odd++
		}
	}
	return odd*50 > len(sample) || (bad+odd)*4 > len(sample)
}

func describeFile(f workspace.File) tools.Output {
	const peek = 128
	first := f.Data[:min(len(f.Data), peek)]
	return textOutput(fmt.Sprintf("[binary file, %d bytes, %s; not shown. Its first %s, escaped:]\n%s\n",
		f.Size, http.DetectContentType(f.Data), limits.FormatCount(len(first), "byte"), strconv.QuoteToASCII(string(first))))
}

var _ io.Reader = (*fileStream)(nil)
