package record

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"strconv"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"
)

// TimeLayout is RFC 3339 in UTC, always with six digits of microseconds.
const TimeLayout = "2006-01-02T15:04:05.000000Z"

// line is a [Record] as it is written, in this order.
type line struct {
	SchemaVersion int             `json:"schema_version"`
	Seq           int64           `json:"seq"`
	ID            string          `json:"id"`
	Time          string          `json:"ts"`
	Session       string          `json:"session"`
	Turn          string          `json:"turn"`
	Parent        string          `json:"parent"`
	Actor         Actor           `json:"actor"`
	Kind          Kind            `json:"kind"`
	Payload       json.RawMessage `json:"payload"`
	Prev          string          `json:"prev"`
}

// Encode returns the line that represents r, without its newline. It is the
// only encoder of records. Characters that a terminal would obey or not show
// are \u escapes, so that a line can be printed as it is.
func Encode(r Record) ([]byte, error) {
	out, err := MarshalSafe(line{
		SchemaVersion: r.SchemaVersion, Seq: r.Seq, ID: r.ID,
		Time:    r.Time.UTC().Format(TimeLayout),
		Session: r.Session, Turn: r.Turn, Parent: r.Parent,
		Actor: r.Actor, Kind: r.Kind, Payload: r.Payload, Prev: r.Prev,
	})
	if err != nil {
		return nil, fmt.Errorf("encode record %d: %w", r.Seq, err)
	}
	return out, nil
}

// Decode reads a line that [Encode] wrote. It ignores unknown fields.
func Decode(text []byte) (Record, error) {
	l, ok := cutLine(text)
	if !ok {
		if err := json.Unmarshal(text, &l); err != nil {
			return Record{}, fmt.Errorf("decode record: %w", err)
		}
	}
	ts, err := time.Parse(TimeLayout, l.Time)
	if err != nil {
		return Record{}, fmt.Errorf("decode record %d: %w", l.Seq, err)
	}
	return Record{
		SchemaVersion: l.SchemaVersion, Seq: l.Seq, ID: l.ID, Time: ts,
		Session: l.Session, Turn: l.Turn, Parent: l.Parent,
		Actor: l.Actor, Kind: l.Kind, Payload: l.Payload, Prev: l.Prev,
	}, nil
}

// envelope has the text before each value of a line that [Encode] writes, up to the
// payload. beforePrev follows the payload.
var envelope = [...][]byte{
	[]byte(`{"schema_version":`), []byte(`,"seq":`), []byte(`,"id":"`), []byte(`","ts":"`), []byte(`","session":"`), []byte(`","turn":"`),
	[]byte(`","parent":"`), []byte(`","actor":"`), []byte(`","kind":"`), []byte(`","payload":`),
}

const beforePrev = `,"prev":"`

// cutLine decodes a line whose envelope is exactly as [Encode] writes it: encoding/json
// looks at each byte of the payload twice for that. ok is false for all other lines.
func cutLine(text []byte) (l line, ok bool) {
	var values [len(envelope)][]byte
	rest := text
	for i, before := range envelope {
		if values[i], rest, ok = bytes.Cut(rest, before); !ok || !isPlain(values[i]) {
			return l, false
		}
	}
	end := bytes.LastIndex(rest, []byte(beforePrev))
	if end < 1 || len(values[0]) > 0 {
		return l, false
	}
	payload := rest[:end]
	prev, ok := bytes.CutSuffix(rest[end+len(beforePrev):], []byte(`"}`))
	version, seq := parseCount(values[1]), parseCount(values[2])
	if !ok || !isPlain(prev) || version < 1 || seq < 1 || payload[0] != '{' || payload[end-1] != '}' || !json.Valid(payload) {
		return l, false
	}
	return line{
		SchemaVersion: int(version), Seq: seq, ID: string(values[3]), Time: string(values[4]), Session: string(values[5]), Turn: string(values[6]),
		Parent: string(values[7]), Actor: Actor(values[8]), Kind: Kind(values[9]), Payload: bytes.Clone(payload), Prev: string(prev),
	}, true
}

// isPlain reports whether a text is the same in a JSON string.
func isPlain(text []byte) bool {
	for _, b := range text {
		if b < ' ' || b > '~' || b == '"' || b == '\\' {
			return false
		}
	}
	return true
}

// parseCount returns a positive number that begins with no other character, or 0.
func parseCount(text []byte) int64 {
	if len(text) == 0 || text[0] < '1' || text[0] > '9' {
		return 0
	}
	n, err := strconv.ParseInt(string(text), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// PayloadOf returns the payload of a record that this program wrote. It is the
// zero value if it can't be read, or was moved to a file.
func PayloadOf[P Payload](r Record) P {
	var p P
	_ = json.Unmarshal(r.Payload, &p)
	return p
}

var payloadTypes = sync.OnceValue(func() map[Kind]reflect.Type {
	types := map[Kind]reflect.Type{}
	for _, p := range Payloads() {
		types[p.Kind()] = reflect.TypeOf(p)
	}
	return types
})

// DecodePayload returns a record's payload, of the type of its kind in [Payloads], or
// nil if the kind is unknown or the payload can't be read.
func DecodePayload(r Record) Payload {
	t := payloadTypes()[r.Kind]
	if t == nil {
		return nil
	}
	p := reflect.New(t)
	if json.Unmarshal(r.Payload, p.Interface()) != nil {
		return nil
	}
	return p.Elem().Interface().(Payload)
}

// marshalUnescaped is json.Marshal without escapes for HTML.
func marshalUnescaped(v any) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(buf.Bytes(), []byte("\n")), nil
}

// MarshalSafe returns a value as one line of JSON, made safe with [SafeJSON] and
// without escapes for HTML.
func MarshalSafe(v any) ([]byte, error) {
	text, err := marshalUnescaped(v)
	if err != nil {
		return nil, err
	}
	return SafeJSON(text), nil
}

// LogWriter returns a writer of a log to w. Each Write must have one line of
// JSON, which it makes safe with [SafeJSON].
func LogWriter(w io.Writer) io.Writer { return logWriter{w} }

type logWriter struct{ w io.Writer }

func (l logWriter) Write(p []byte) (int, error) {
	if _, err := l.w.Write(SafeJSON(p)); err != nil {
		return 0, err
	}
	return len(p), nil
}

// SafeJSON returns JSON with controls, format characters (bidirectional marks,
// zero widths, tags) and private-use characters as escapes: a terminal would
// obey them or not show them. Such characters occur only in strings, where
// escapes mean the same. Newlines stay: they occur only between values.
func SafeJSON(text []byte) []byte {
	clean := true
	for _, b := range text {
		if b >= utf8.RuneSelf || b == 0x7f {
			clean = false
			break
		}
	}
	if clean {
		return text
	}
	out := make([]byte, 0, len(text)+64)
	copied := 0
	for i := 0; i < len(text); {
		if b := text[i]; b >= ' ' && b < 0x7f || b == '\n' {
			i++
			continue
		}
		r, n := utf8.DecodeRune(text[i:])
		if isInvisible(r) {
			out = appendEscape(append(out, text[copied:i]...), r)
			copied = i + n
		}
		i += n
	}
	return append(out, text[copied:]...)
}

func isInvisible(r rune) bool {
	return unicode.In(r, unicode.Cc, unicode.Cf, unicode.Co, unicode.Zl, unicode.Zp)
}

func appendEscape(out []byte, r rune) []byte {
	if r <= 0xffff {
		return appendUnit(out, uint16(r))
	}
	r -= 0x10000
	return appendUnit(appendUnit(out, uint16(0xd800+(r>>10))), uint16(0xdc00+(r&0x3ff)))
}

func appendUnit(out []byte, u uint16) []byte {
	hex := strconv.FormatUint(uint64(u)+0x10000, 16)
	return append(append(out, '\\', 'u'), hex[1:]...)
}

// NonNil returns s, or an empty list if s is nil: records have no null lists.
func NonNil[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}

// CostUSD returns a cost as records have it: decimal US dollars with six
// digits, or "unknown" for nil.
func CostUSD(micro *int64) string {
	if micro == nil {
		return "unknown"
	}
	return fmt.Sprintf("%d.%06d", *micro/1_000_000, *micro%1_000_000)
}
