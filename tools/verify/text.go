package verify

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
	"strings"
	"unicode/utf8"

	"github.com/caisson-run/caisson/tools/internal/utf8text"
	"github.com/caisson-run/caisson/tools/workspace"
)

// maxRegexWork bounds the product of a pattern's program size and its text's size
// in bytes. RE2 takes time in proportion to it, 10 to 70 ns per step as measured
// for grep, and can't be interrupted.
const maxRegexWork = 50_000_000

// readText returns the text that c checks, which may be a file's, or the reason why
// it can't.
func (e *engine) readText(ctx context.Context, c check) (text, reason string, err error) {
	if c.Target != nil {
		return *c.Target, "", nil
	}
	f, err := e.view.ReadFile(ctx, c.Path, 0, maxTextBytes)
	if err != nil {
		reason, err = fileReason(ctx, err)
		return "", reason, err
	}
	if f.Truncated {
		return "", fmt.Sprintf("the file is larger than %d MiB", maxTextBytes>>20), nil
	}
	return string(f.Data), "", nil
}

// fileReason returns the reason for a check that failed with a workspace error. Any
// other error is returned unchanged and ends the call.
func fileReason(ctx context.Context, err error) (string, error) {
	if context.Cause(ctx) != nil {
		return "", err
	}
	if e, ok := errors.AsType[*workspace.Error](err); ok {
		return e.Error(), nil
	}
	return "", err
}

func checkText(c check, text string) (passed bool, reason string) {
	switch c.Kind {
	case kindContains, kindNotContains:
		value, reason := c.stringValue()
		if reason != "" {
			return false, reason
		}
		return checkContains(c, text, value)
	case kindContainsAny, kindContainsAll:
		return checkContainsMany(c, text)
	case kindRegex:
		return checkRegex(c, text)
	case kindMinLength:
		return checkMinLength(c, text)
	case kindJSONSchema:
		return matchSchema(c.Schema, text)
	}
	return false, "unknown check kind"
}

// stringValue returns the check's value, a string that is not empty, or the reason
// why it isn't.
func (c check) stringValue() (value, reason string) {
	if len(c.Value) == 0 {
		return "", "needs value"
	}
	if err := json.Unmarshal(c.Value, &value); err != nil {
		return "", "value must be a string"
	}
	if value == "" {
		return "", "value is empty, which every text contains"
	}
	return value, ""
}

func (c check) containsValue(text, value string) bool {
	if c.CaseInsensitive {
		text = strings.ToLower(text)
		value = strings.ToLower(value)
	}
	return strings.Contains(text, value)
}

func checkContains(c check, text, value string) (bool, string) {
	want := c.Kind == kindContains
	if c.containsValue(text, value) {
		return want, quoteClipped(value) + " is in it"
	}
	return !want, quoteClipped(value) + " is not in it"
}

func checkContainsMany(c check, text string) (bool, string) {
	if len(c.Values) == 0 {
		return false, "needs values, at least one"
	}
	var missing []string
	for _, v := range c.Values {
		switch {
		case v == "":
			return false, "one of values is empty, which every text contains"
		case !c.containsValue(text, v):
			missing = append(missing, quoteClipped(v))
		case c.Kind == kindContainsAny:
			return true, quoteClipped(v) + " is in it"
		}
	}
	if c.Kind == kindContainsAny {
		return false, fmt.Sprintf("none of %d values is in it", len(c.Values))
	}
	if len(missing) > 0 {
		return false, "not in it: " + strings.Join(missing, ", ")
	}
	return true, fmt.Sprintf("all %d values are in it", len(c.Values))
}

// checkRegex searches for a regular expression anywhere in the text.
func checkRegex(c check, text string) (bool, string) {
	pattern, reason := c.stringValue()
	if reason != "" {
		return false, reason
	}
	if c.CaseInsensitive {
		pattern = "(?i)" + pattern
	}
	size, err := programSize(pattern)
	if err != nil {
		return false, "bad pattern (RE2 syntax): " + err.Error()
	}
	if size*len(text) > maxRegexWork {
		return false, fmt.Sprintf("the pattern is too large for a text of %d bytes; use a simpler one", len(text))
	}
	re, err := regexp.Compile(pattern)
	if err != nil {
		return false, "bad pattern: " + err.Error()
	}
	if at := re.FindStringIndex(text); at != nil {
		return true, "matches " + quoteClipped(text[at[0]:at[1]])
	}
	return false, "no match"
}

// programSize returns the number of instructions of a pattern, which bounds the
// steps per byte of text.
func programSize(pattern string) (int, error) {
	parsed, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return 0, err
	}
	prog, err := syntax.Compile(parsed.Simplify())
	if err != nil {
		return 0, err
	}
	return len(prog.Inst), nil
}

func checkMinLength(c check, text string) (bool, string) {
	var minimum float64
	if err := json.Unmarshal(c.Value, &minimum); err != nil {
		return false, "needs value, a whole number"
	}
	if minimum < 0 || minimum != float64(int64(minimum)) {
		return false, "value must be a whole number of at least 0"
	}
	n := utf8.RuneCountInString(text)
	return float64(n) >= minimum, fmt.Sprintf("%d characters, at least %d are needed", n, int64(minimum))
}

func (e *engine) checkHash(ctx context.Context, c check) (passed bool, reason string, err error) {
	want, reason := c.stringValue()
	if reason != "" {
		return false, reason, nil
	}
	want = strings.ToLower(want)
	if raw, err := hex.DecodeString(want); err != nil || len(raw) != sha256.Size {
		return false, "value must be 64 hexadecimal digits", nil
	}
	var got string
	if c.Target != nil {
		got = fmt.Sprintf("%x", sha256.Sum256([]byte(*c.Target)))
	} else {
		got, reason, err = e.hashFile(ctx, c.Path)
		if reason != "" || err != nil {
			return false, reason, err
		}
	}
	return got == want, "the SHA-256 is " + got, nil
}

// hashFile hashes a file piece by piece. If the file changes meanwhile, the hash is
// of the bytes that were read.
func (e *engine) hashFile(ctx context.Context, path string) (sum, reason string, err error) {
	h := sha256.New()
	for offset := int64(0); ; {
		f, err := e.view.ReadFile(ctx, path, offset, 1<<20)
		if err != nil {
			reason, err = fileReason(ctx, err)
			return "", reason, err
		}
		if f.Size > maxHashBytes || offset > maxHashBytes {
			return "", fmt.Sprintf("the file is larger than %d MiB", maxHashBytes>>20), nil
		}
		_, _ = h.Write(f.Data) // a hash doesn't fail
		offset += int64(len(f.Data))
		if !f.Truncated || len(f.Data) == 0 {
			return hex.EncodeToString(h.Sum(nil)), "", nil
		}
	}
}

func (e *engine) checkFileExists(ctx context.Context, c check) (passed bool, reason string, err error) {
	if c.Path == "" {
		return false, "needs path", nil
	}
	info, err := e.view.Stat(ctx, c.Path)
	if err != nil {
		reason, err = fileReason(ctx, err)
		return false, reason, err
	}
	if info.Type != workspace.TypeFile {
		return false, fmt.Sprintf("it is there, and is no file but %s", info.Type), nil
	}
	return true, fmt.Sprintf("a file of %d bytes", info.Size), nil
}

func quoteClipped(s string) string { return fmt.Sprintf("%q", utf8text.Clip(s, 80)) }
