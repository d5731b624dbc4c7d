package trace

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/caisson-run/caisson/runner/record"
)

// maxRestored bounds the bytes of the long values restored into one record.
const maxRestored = 64 << 20

// restoreSpilled returns a record with its long values, which are in files; see
// [record.Spilled]. A missing or changed value is an error, and so are more than
// maxRestored bytes of values.
func restoreSpilled(s Session, rec record.Record) (record.Record, error) {
	values := record.SpilledValues(rec)
	if len(values) == 0 {
		return rec, nil
	}
	var payload any
	dec := json.NewDecoder(bytes.NewReader(rec.Payload))
	dec.UseNumber()
	if err := dec.Decode(&payload); err != nil {
		return rec, fmt.Errorf("record %d: %w", rec.Seq, err)
	}
	left := int64(maxRestored)
	for _, v := range values {
		if left -= int64(v.Bytes); v.Bytes < 0 || left < 0 {
			return rec, fmt.Errorf("record %d: its values have more than %d bytes", rec.Seq, maxRestored)
		}
		if err := verifyValue(s, v); err != nil {
			return rec, fmt.Errorf("record %d: %w", rec.Seq, err)
		}
		text, err := readValue(s, v)
		if err != nil {
			return rec, fmt.Errorf("record %d: %w", rec.Seq, err)
		}
		if v.Pointer == "" {
			rec.Payload = text
			return rec, nil
		}
		if !replaceString(payload, strings.Split(v.Pointer, "/")[1:], string(text)) {
			return rec, fmt.Errorf("record %d: there is no %s in it", rec.Seq, v.Pointer)
		}
	}
	if object, ok := payload.(map[string]any); ok {
		delete(object, "spilled")
	}
	raw, err := json.Marshal(payload)
	if err != nil {
		return rec, fmt.Errorf("record %d: %w", rec.Seq, err)
	}
	rec.Payload = raw
	return rec, nil
}

func readValue(s Session, v record.Spilled) ([]byte, error) {
	f, err := openRegular(filepath.Join(s.Dir, v.Path))
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // only read
	return io.ReadAll(io.LimitReader(f, int64(v.Bytes)))
}

// replaceString replaces the string at a JSON pointer (RFC 6901), which is given
// as its tokens, and reports whether it exists.
func replaceString(at any, tokens []string, value string) bool {
	for i, token := range tokens {
		last := i == len(tokens)-1
		token = strings.NewReplacer("~1", "/", "~0", "~").Replace(token)
		switch v := at.(type) {
		case map[string]any:
			next, ok := v[token]
			if _, text := next.(string); !ok || last && !text {
				return false
			}
			if last {
				v[token] = value
			}
			at = next
		case []any:
			n, err := strconv.Atoi(token)
			if err != nil || n < 0 || n >= len(v) {
				return false
			}
			if _, text := v[n].(string); last && !text {
				return false
			}
			if last {
				v[n] = value
			}
			at = v[n]
		default:
			return false
		}
	}
	return len(tokens) > 0
}
