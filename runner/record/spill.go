package record

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// MaxLineBytes bounds a line with its newline. It is below 65,536 bytes, the
// default limit of Go's bufio.Scanner and similar readers.
const MaxLineBytes = 64_000

const (
	// maxEnvelopeBytes is room for everything in a line but its payload.
	maxEnvelopeBytes = 1_000
	// picturePointer matches the pictures of a [Message], and no input of a model,
	// whose text must stay visible. It is a valid pattern.
	picturePointer = "/blocks/*/tool_result/content/*/image"
	// spillable is the shortest string that is worth a file.
	spillable = 4_096
)

// Spilled locates a value that was too long for its line. It is an element of
// the payload's "spilled" list. The payload keeps the value's beginning and
// end, but nothing of a picture, so that it can still be decoded.
type Spilled struct {
	// Pointer is the JSON pointer of a string in the payload, or "" for the
	// whole payload, which then has only this list.
	Pointer string `json:"pointer"`
	// Path is relative to the session's directory.
	Path   string `json:"path"`
	Bytes  int    `json:"bytes"`
	SHA256 string `json:"sha256"`
}

// SpilledFiles returns the files of a record's long values, relative to its
// session's directory. Since a record may be foreign, it leaves out files that
// are not in the spill directory.
func SpilledFiles(rec Record) []string {
	return spilledFiles(SpilledValues(rec))
}

// SpilledValues returns a record's long values; see [SpilledFiles].
func SpilledValues(rec Record) []Spilled {
	if !bytes.Contains(rec.Payload, []byte(`"spilled"`)) {
		return nil
	}
	var p struct {
		Spilled []Spilled `json:"spilled"`
	}
	if json.Unmarshal(rec.Payload, &p) != nil {
		return nil
	}
	return slices.DeleteFunc(p.Spilled, func(s Spilled) bool {
		return filepath.Dir(s.Path) != SpillDir || !filepath.IsLocal(s.Path)
	})
}

// spillPayload makes payload fit a line: the longest strings go to files of
// dir/spill named after the record, longest first, until the rest fits. It also
// returns the files, relative to dir.
func spillPayload(dir, id string, payload []byte) (short []byte, files []string, err error) {
	if fitsLine(payload) {
		return payload, nil, nil
	}
	// Keep as much of both ends as fits if one string is too long, or little if many are.
	for _, keep := range []int{8_192, 512} {
		short, list, err := spillStrings(dir, id, payload, keep)
		if err != nil || list != nil {
			return short, spilledFiles(list), err
		}
	}
	moved, err := writeSpill(dir, id, "", payload)
	if err != nil {
		return nil, nil, err
	}
	short, err = marshalUnescaped(map[string]any{"spilled": []Spilled{moved}})
	return short, []string{moved.Path}, err
}

func spilledFiles(list []Spilled) []string {
	var files []string
	for _, s := range list {
		files = append(files, s.Path)
	}
	return files
}

func fitsLine(payload []byte) bool {
	return len(SafeJSON(payload)) <= MaxLineBytes-maxEnvelopeBytes
}

// spillStrings moves strings out until the payload fits. The list is nil if it
// does not fit without any long string.
func spillStrings(dir, id string, payload []byte, keep int) (_ []byte, list []Spilled, err error) {
	dec := json.NewDecoder(bytes.NewReader(payload))
	dec.UseNumber()
	var root map[string]any
	if err := dec.Decode(&root); err != nil {
		return nil, nil, fmt.Errorf("spill payload of %s: %w", id, err)
	}
	var found []stringAt
	findStrings(root, "", nil, func(s stringAt) { found = append(found, s) })
	slices.SortStableFunc(found, func(a, b stringAt) int { return cmp.Compare(len(b.value), len(a.value)) })
	for i, s := range found {
		if len(s.value) < spillable || len(s.value) < 3*keep {
			break
		}
		moved, err := writeSpill(dir, id+"-"+strconv.Itoa(i), s.pointer, []byte(s.value))
		if err != nil {
			return nil, nil, err
		}
		short := ""
		if picture, _ := path.Match(picturePointer, s.pointer); !picture {
			head, tail := CutEnds(s.value, keep, keep)
			short = fmt.Sprintf("%s\n[… %d bytes left out here, the whole is in %s …]\n%s", head, len(s.value)-len(head)-len(tail), moved.Path, tail)
		}
		s.set(short)
		list = append(list, moved)
		root["spilled"] = list
		raw, err := marshalUnescaped(root)
		if err != nil {
			return nil, nil, fmt.Errorf("spill payload of %s: %w", id, err)
		}
		if fitsLine(raw) {
			return raw, list, nil
		}
	}
	return nil, nil, nil
}

// stringAt is a string of a decoded payload. set replaces it.
type stringAt struct {
	pointer string
	value   string
	set     func(string)
}

// findStrings calls found with each string in a decoded value, which set replaces.
func findStrings(v any, pointer string, set func(string), found func(stringAt)) {
	switch v := v.(type) {
	case string:
		found(stringAt{pointer, v, set})
	case map[string]any:
		for _, k := range slices.Sorted(maps.Keys(v)) {
			findStrings(v[k], pointer+"/"+escapePointer(k), func(short string) { v[k] = short }, found)
		}
	case []any:
		for i := range v {
			findStrings(v[i], pointer+"/"+strconv.Itoa(i), func(short string) { v[i] = short }, found)
		}
	}
}

// escapePointer escapes a token of a JSON pointer (RFC 6901, section 3).
func escapePointer(key string) string {
	return strings.NewReplacer("~", "~0", "/", "~1").Replace(key)
}

func writeSpill(dir, name, pointer string, value []byte) (Spilled, error) {
	path := filepath.Join(SpillDir, name)
	if err := os.WriteFile(filepath.Join(dir, path), value, 0o600); err != nil {
		return Spilled{}, fmt.Errorf("spill value: %w", err)
	}
	sum := sha256.Sum256(value)
	return Spilled{Pointer: pointer, Path: path, Bytes: len(value), SHA256: hex.EncodeToString(sum[:])}, nil
}

// CutEnds returns the first and the last bytes of a text, which is longer than both.
// It doesn't cut inside a character, so both can be shorter.
func CutEnds(s string, first, last int) (head, tail string) {
	from, to := first, len(s)-last
	for from > 0 && !utf8.RuneStart(s[from]) {
		from--
	}
	for to < len(s) && !utf8.RuneStart(s[to]) {
		to++
	}
	return s[:from], s[to:]
}

// SpillDir is the directory of long values in a session's directory.
const SpillDir = "spill"
