package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"sync"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"

	"github.com/caisson-run/caisson/runner/record"
)

// maxBodyBytes bounds a request's body. Users' messages are the largest.
const maxBodyBytes = 1 << 20

// jsonDepth bounds the nesting of a request. None of the API's has more than
// three levels.
const jsonDepth = 16

// jsonKey matches the keys of requests. Other keys are unknown, but could still
// match a field because encoding/json ignores case.
var jsonKey = lazyRegexp(`^[a-z0-9_]{1,64}$`)

// lazyRegexp returns a function that compiles a regular expression at its first call.
func lazyRegexp(text string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(text) })
}

// jsonFormat returns a format that reads requests strictly, and writes
// responses that are safe to print.
func jsonFormat() huma.Format {
	return huma.Format{
		Marshal: writeJSON,
		Unmarshal: func(data []byte, v any) error {
			if err := checkJSON(data); err != nil {
				return err
			}
			return json.Unmarshal(data, v)
		},
	}
}

// writeJSON writes one value in one line, with invisible characters as escapes.
func writeJSON(w io.Writer, v any) error {
	text, err := record.MarshalSafe(v)
	if err != nil {
		return err
	}
	_, err = w.Write(append(text, '\n'))
	return err
}

// checkJSON refuses input that encoding/json accepts: duplicate keys, which
// parsers resolve differently, unknown spellings of keys, invalid UTF-8,
// trailing data, and deep nesting.
func checkJSON(data []byte) error {
	if !utf8.Valid(data) {
		return errors.New("the body is not valid UTF-8")
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	if err := checkValue(dec, 0); err != nil {
		return err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("there is more behind the JSON value")
	}
	return nil
}

func checkValue(dec *json.Decoder, depth int) error {
	tok, err := dec.Token()
	if err != nil {
		return fmt.Errorf("the body is not JSON: %w", err)
	}
	open, ok := tok.(json.Delim)
	if !ok {
		return nil
	}
	if depth >= jsonDepth {
		return fmt.Errorf("the body is nested deeper than %d", jsonDepth)
	}
	seen := map[string]bool{}
	for dec.More() {
		if open == '{' {
			key, err := dec.Token()
			if err != nil {
				return fmt.Errorf("the body is not JSON: %w", err)
			}
			name, _ := key.(string) // a decoder returns only strings here
			switch {
			case !jsonKey().MatchString(name):
				return errors.New("the body has an unknown key")
			case seen[name]:
				return fmt.Errorf("the body has the key %s twice", name)
			}
			seen[name] = true
		}
		if err := checkValue(dec, depth+1); err != nil {
			return err
		}
	}
	if _, err := dec.Token(); err != nil {
		return fmt.Errorf("the body is not JSON: %w", err)
	}
	return nil
}
