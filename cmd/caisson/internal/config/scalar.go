package config

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"
)

// Size is a number of bytes: 1048576, 64k, 2GiB, 1.5g. Units are powers of 1024, as in
// Docker's flags.
type Size int64

// Duration is a duration in Go's form: 90s, 10m, 1h30m.
type Duration time.Duration

// CPUs is processor time per wall time in thousandths, written as a number of
// processors: 1.5.
type CPUs int64

// Count is a whole number of at least 1. To have no limit, leave the setting out: 0 is
// invalid.
type Count int64

// Dollars is an amount in millionths of a US dollar, written in dollars: 0.5.
type Dollars int64

// Retries is a number of retries, 0 for none.
type Retries int64

const maxRetries = 20

func parseRetries(s string) (Retries, error) {
	n, err := strconv.ParseInt(strings.TrimSpace(s), 10, 64)
	if err != nil || n < 0 || n > maxRetries {
		return 0, fmt.Errorf("invalid number of retries %q: want 0 to %d", s, maxRetries)
	}
	return Retries(n), nil
}

// Number is a decimal number of at least 0.
type Number float64

func parseSize(s string) (Size, error) {
	digits := strings.TrimRight(strings.ToLower(strings.TrimSpace(s)), "bikmgt ")
	unit := strings.TrimSpace(strings.ToLower(strings.TrimSpace(s))[len(digits):])
	shift, ok := map[string]int{
		"": 0, "b": 0, "k": 10, "kb": 10, "kib": 10, "m": 20, "mb": 20, "mib": 20,
		"g": 30, "gb": 30, "gib": 30, "t": 40, "tb": 40, "tib": 40,
	}[unit]
	v, err := strconv.ParseFloat(digits, 64)
	if err != nil || !ok || !(v > 0) || v*float64(int64(1)<<shift) >= math.MaxInt64 {
		return 0, fmt.Errorf("invalid size %q: want bytes or a number with a unit, such as 512m or 2GiB", s)
	}
	return Size(v * float64(int64(1)<<shift)), nil
}

// ParseDuration parses a [Duration].
func ParseDuration(s string) (Duration, error) {
	d, err := time.ParseDuration(s)
	if err != nil || d <= 0 {
		return 0, fmt.Errorf("invalid duration %q: want a number with a unit, such as 90s or 10m", s)
	}
	return Duration(d), nil
}

func parseCPUs(s string) (CPUs, error) {
	v, err := strconv.ParseFloat(s, 64)
	if err != nil || !(v >= 0.01) || v > 1<<20 {
		return 0, fmt.Errorf("invalid number of processors %q: want a number such as 2 or 0.5", s)
	}
	return CPUs(math.Round(v * 1000)), nil
}

// ParseDollars parses [Dollars].
func ParseDollars(s string) (Dollars, error) {
	v, err := strconv.ParseFloat(s, 64)
	if err != nil || !(v >= 1e-6) || v > 1e9 {
		return 0, fmt.Errorf("invalid amount of US dollars %q: want a number such as 5 or 0.25; leave the setting out for no limit", s)
	}
	return Dollars(math.Round(v * 1e6)), nil
}

func parseCount(s string) (Count, error) {
	v, err := strconv.ParseInt(s, 10, 64)
	if err != nil || v < 1 {
		return 0, fmt.Errorf("invalid count %q: want a whole number of at least 1; leave the setting out for no limit", s)
	}
	return Count(v), nil
}

func parseNumber(s string) (Number, error) {
	v, err := strconv.ParseFloat(s, 64)
	if err != nil || !(v >= 0) || math.IsInf(v, 0) {
		return 0, fmt.Errorf("invalid number %q: want at least 0", s)
	}
	return Number(v), nil
}

// UnmarshalYAML implements yaml.NodeUnmarshaler.
func (s *Size) UnmarshalYAML(n ast.Node) error { return unmarshalScalar(s, n, parseSize) }

// UnmarshalYAML implements yaml.NodeUnmarshaler.
func (d *Duration) UnmarshalYAML(n ast.Node) error { return unmarshalScalar(d, n, ParseDuration) }

// UnmarshalYAML implements yaml.NodeUnmarshaler.
func (c *CPUs) UnmarshalYAML(n ast.Node) error { return unmarshalScalar(c, n, parseCPUs) }

// UnmarshalYAML implements yaml.NodeUnmarshaler.
func (d *Dollars) UnmarshalYAML(n ast.Node) error { return unmarshalScalar(d, n, ParseDollars) }

// UnmarshalYAML implements yaml.NodeUnmarshaler.
func (c *Count) UnmarshalYAML(n ast.Node) error { return unmarshalScalar(c, n, parseCount) }

// UnmarshalYAML implements yaml.NodeUnmarshaler.
func (r *Retries) UnmarshalYAML(n ast.Node) error { return unmarshalScalar(r, n, parseRetries) }

func (r Retries) String() string { return strconv.FormatInt(int64(r), 10) }

// UnmarshalYAML implements yaml.NodeUnmarshaler.
func (v *Number) UnmarshalYAML(n ast.Node) error { return unmarshalScalar(v, n, parseNumber) }

// unmarshalScalar decodes one value. Its error has the value's place.
func unmarshalScalar[T any](dst *T, n ast.Node, parse func(string) (T, error)) error {
	text, ok := scalarText(n)
	if !ok {
		return errorAt(n, errors.New("write one value, not a list or section"))
	}
	v, err := parse(text)
	if err != nil {
		return errorAt(n, err)
	}
	*dst = v
	return nil
}

// scalarText returns a value as written, with variables of a string expanded.
func scalarText(n ast.Node) (string, bool) {
	switch n := n.(type) {
	case *ast.StringNode:
		return n.Value, true
	case *ast.IntegerNode, *ast.FloatNode:
		return n.GetToken().Value, true
	}
	return "", false
}

// String uses the largest unit that is exact.
func (s Size) String() string {
	units := []string{"", "KiB", "MiB", "GiB", "TiB"}
	v, unit := int64(s), 0
	for v >= 1024 && v%1024 == 0 && unit < len(units)-1 {
		v, unit = v/1024, unit+1
	}
	return strconv.FormatInt(v, 10) + units[unit]
}

// String uses Go's form without zero parts: 10m, 1h30m.
func (d Duration) String() string {
	text := time.Duration(d).String()
	for _, zero := range []struct{ suffix, of string }{{"m0s", "m"}, {"h0m", "h"}} {
		if before, ok := strings.CutSuffix(text, zero.suffix); ok {
			text = before + zero.of
		}
	}
	return text
}

func (c CPUs) String() string { return strconv.FormatFloat(float64(c)/1000, 'f', -1, 64) }

func (d Dollars) String() string { return strconv.FormatFloat(float64(d)/1e6, 'f', -1, 64) }

func (c Count) String() string { return strconv.FormatInt(int64(c), 10) }

func (v Number) String() string { return strconv.FormatFloat(float64(v), 'f', -1, 64) }

func (Duration) jsonSchema() map[string]any {
	return map[string]any{"type": "string", "pattern": `^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$`}
}

// numberSchema is the schema of a number that a string with this pattern can also hold.
func numberSchema(number map[string]any, pattern string) map[string]any {
	return map[string]any{"anyOf": []any{number, map[string]any{"type": "string", "pattern": pattern}}}
}

const decimalPattern = `^[0-9]+(\.[0-9]+)?$`

func (Size) jsonSchema() map[string]any {
	return numberSchema(map[string]any{"type": "integer", "minimum": 1}, `^\s*[0-9]+(\.[0-9]+)?\s*([bB]|[kKmMgGtT]([iI]?[bB])?)?\s*$`)
}

func (CPUs) jsonSchema() map[string]any {
	return numberSchema(map[string]any{"type": "number", "minimum": 0.01}, decimalPattern)
}

func (Dollars) jsonSchema() map[string]any {
	return numberSchema(map[string]any{"type": "number", "minimum": 1e-6, "maximum": 1e9}, decimalPattern)
}

func (Count) jsonSchema() map[string]any {
	return numberSchema(map[string]any{"type": "integer", "minimum": 1}, `^[1-9][0-9]*$`)
}

func (Retries) jsonSchema() map[string]any {
	return numberSchema(map[string]any{"type": "integer", "minimum": 0, "maximum": maxRetries}, `^(1?[0-9]|20)$`)
}

func (Number) jsonSchema() map[string]any {
	return numberSchema(map[string]any{"type": "number", "minimum": 0}, decimalPattern)
}
