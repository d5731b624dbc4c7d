// Package strictjson decodes JSON from sources that are not trusted.
package strictjson

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/caisson-run/caisson/tools/internal/utf8text"
)

// MaxValues bounds the values in one text, and so the work of validating it.
const MaxValues = 50_000

// Decode decodes exactly one JSON value. It refuses what encoding/json accepts:
// duplicate keys, trailing data, invalid UTF-8, unbounded nesting. Numbers stay
// json.Number.
func Decode(text []byte, maxBytes, maxDepth int) (any, error) {
	if len(text) > maxBytes {
		return nil, fmt.Errorf("%d bytes, at most %d are accepted", len(text), maxBytes)
	}
	if !utf8.Valid(text) {
		return nil, errors.New("not valid UTF-8")
	}
	p := parser{dec: json.NewDecoder(bytes.NewReader(text)), maxDepth: maxDepth}
	p.dec.UseNumber()
	v, err := p.parseValue(0)
	if err != nil {
		return nil, err
	}
	if _, err := p.dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("more data after the JSON value")
	}
	return v, nil
}

type parser struct {
	dec      *json.Decoder
	maxDepth int
	values   int
}

func (p *parser) parseValue(depth int) (any, error) {
	if p.values++; p.values > MaxValues {
		return nil, fmt.Errorf("more than %d values", MaxValues)
	}
	tok, err := p.nextToken()
	if err != nil {
		return nil, err
	}
	if n, ok := tok.(json.Number); ok {
		return n, CheckNumber(string(n))
	}
	delim, ok := tok.(json.Delim)
	if !ok {
		return tok, nil
	}
	if depth >= p.maxDepth {
		return nil, fmt.Errorf("nested deeper than %d", p.maxDepth)
	}
	if delim == '{' {
		return p.parseObject(depth + 1)
	}
	return p.parseArray(depth + 1)
}

// CheckNumber refuses JSON numbers far beyond a float64's range or precision:
// schemas compare exactly, and 1e1000000 takes package math/big 70 ms.
func CheckNumber(n string) error {
	const maxDigits, maxExponent = 100, 400
	if i := strings.IndexAny(n, "eE"); i >= 0 {
		if e, err := strconv.Atoi(n[i+1:]); err != nil || e > maxExponent || e < -maxExponent {
			return fmt.Errorf("number %s is out of range", utf8text.Clip(n, 40))
		}
	}
	if len(n) > maxDigits {
		return fmt.Errorf("number %s has more than %d digits", utf8text.Clip(n, 40), maxDigits)
	}
	return nil
}

func (p *parser) parseObject(depth int) (any, error) {
	m := map[string]any{}
	for p.dec.More() {
		tok, err := p.nextToken()
		if err != nil {
			return nil, err
		}
		key, _ := tok.(string) // the decoder takes nothing else
		if _, dup := m[key]; dup {
			return nil, fmt.Errorf("key %q is given twice", utf8text.Clip(key, 80))
		}
		if m[key], err = p.parseValue(depth); err != nil {
			return nil, err
		}
	}
	_, err := p.nextToken()
	return m, err
}

func (p *parser) parseArray(depth int) (any, error) {
	list := []any{}
	for p.dec.More() {
		v, err := p.parseValue(depth)
		if err != nil {
			return nil, err
		}
		list = append(list, v)
	}
	_, err := p.nextToken()
	return list, err
}

func (p *parser) nextToken() (json.Token, error) {
	tok, err := p.dec.Token()
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, errors.New("JSON ends too early")
	}
	if err != nil {
		return nil, fmt.Errorf("not JSON: %w", err)
	}
	return tok, nil
}

// Canonical returns the JSON of v with sorted keys and no space.
func Canonical(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, fmt.Errorf("encode canonical JSON: %w", err)
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}
