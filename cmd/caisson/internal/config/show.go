package config

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/caisson-run/caisson/tools/safeurl"
)

// Value is a setting in effect.
type Value struct {
	// Key is its place in a file, such as "limits.max_rounds".
	Key string `json:"key"`
	// Text is the value in the form of a file, on one line and without secrets.
	Text string `json:"value"`
	// Origin is "built-in", "user PATH", "profile NAME", "workspace PATH", "project
	// PATH", "environment CAISSON_…", "flag --…" or "requirements".
	Origin string `json:"origin"`
}

// Effective lists the settings in effect, by key. The policy is the configured one,
// followed by entries that tighten it. hidden are values to hide, by the names shown
// instead.
func (c *Config) Effective(hidden map[string]string) []Value {
	values := listValues(c.File)
	for i := range values {
		values[i].Origin = c.origins[values[i].Key]
	}
	for _, layer := range []struct {
		origin string
		policy any
	}{{"project " + ProjectPath, c.Project.Policy}, {"requirements", c.Requirements.Policy}} {
		at := len(values)
		flattenValue("policy", reflect.ValueOf(layer.policy), &values)
		for i := range values[at:] {
			values[at+i].Origin = layer.origin + ", can only tighten"
		}
	}
	for i := range values {
		values[i].Text = hideSecrets(values[i].Text, hidden)
	}
	slices.SortStableFunc(values, func(a, b Value) int { return strings.Compare(a.Key, b.Key) })
	return values
}

// ProjectSetting is a setting of a workspace's own file.
type ProjectSetting struct {
	Key   string `json:"key"`
	Value string `json:"value"`
	// Counts is false if the setting in effect is stricter or the same. Effective is
	// that setting.
	Counts    bool   `json:"counts"`
	Effective string `json:"effective,omitempty"`
}

// ProjectSettings lists the settings of the workspace's own file, by key.
func (c *Config) ProjectSettings() []ProjectSetting {
	var said []Value
	flattenValue("", reflect.ValueOf(c.Project), &said)
	slices.SortFunc(said, func(a, b Value) int { return strings.Compare(a.Key, b.Key) })
	effective := map[string]string{}
	for _, v := range listValues(c.File) {
		effective[v.Key] = v.Text
	}
	out := make([]ProjectSetting, 0, len(said))
	for _, v := range said {
		s := ProjectSetting{Key: v.Key, Value: v.Text, Counts: true}
		if !strings.HasPrefix(v.Key, "policy.") && !strings.HasPrefix(c.origins[v.Key], "project ") {
			s.Counts, s.Effective = false, effective[v.Key]
		}
		out = append(out, s)
	}
	return out
}

// listValues lists what a file sets, except profiles and workspaces.
func listValues(f File) []Value {
	f.Profiles, f.Workspaces = nil, nil
	var out []Value
	flattenValue("", reflect.ValueOf(f), &out)
	slices.SortFunc(out, func(a, b Value) int { return strings.Compare(a.Key, b.Key) })
	return out
}

func flattenValue(key string, v reflect.Value, out *[]Value) {
	switch {
	case !v.IsValid():
	case v.Kind() == reflect.Pointer:
		if !v.IsNil() {
			flattenValue(key, v.Elem(), out)
		}
	case v.Kind() == reflect.Struct:
		for _, f := range fieldsOf(v.Type()) {
			inner := v.FieldByIndex(f.index)
			if inner.IsZero() { // not set
				continue
			}
			flattenValue(joinKey(key, f.name), inner, out)
		}
	case v.Kind() == reflect.Map:
		for _, k := range v.MapKeys() {
			flattenValue(joinKey(key, k.String()), v.MapIndex(k), out)
		}
	case v.Kind() == reflect.Slice && v.IsNil():
	default:
		*out = append(*out, Value{Key: key, Text: valueText(v)})
	}
}

// valueText returns a value on one line, as in YAML.
func valueText(v reflect.Value) string {
	if s, ok := reflect.TypeAssert[fmt.Stringer](v); ok {
		return s.String()
	}
	switch {
	case v.Kind() == reflect.String:
		return v.String()
	case v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.Uint8:
		return string(v.Bytes())
	}
	text, err := json.Marshal(v.Interface())
	if err != nil {
		return "?"
	}
	return string(text)
}

var plainKey = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^[A-Za-z0-9_/*-]+$`)
})

// joinKey joins keys by a dot. It quotes a key with other characters.
func joinKey(above, key string) string {
	if !plainKey().MatchString(key) {
		quoted, _ := json.Marshal(key)
		key = string(quoted)
	}
	if above == "" {
		return key
	}
	return above + "." + key
}

// minHiddenBytes keeps a secret that is an ordinary word from hiding text.
const minHiddenBytes = 6

// hideSecrets replaces the given values in a text, and credentials of addresses.
func hideSecrets(text string, hidden map[string]string) string {
	for _, name := range sortedKeys(hidden) {
		if v := hidden[name]; len(v) >= minHiddenBytes {
			text = strings.ReplaceAll(text, v, "[hidden: "+name+"]")
		}
	}
	if shown := safeurl.InText(text); shown != text {
		return shown + " [credentials hidden]"
	}
	return text
}

// HiddenValues returns the values of the environment to hide, by variable: the named
// ones, and those whose names sound like secrets.
func HiddenValues(environ []string, named ...string) map[string]string {
	out := map[string]string{}
	for _, e := range environ {
		name, v, _ := strings.Cut(e, "=")
		if slices.Contains(named, name) || secretName().MatchString(name) {
			out[name] = v
		}
	}
	return out
}

var secretName = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?i)((key|token|secret|passw(or)?d|passphrase|credentials?)$|(^|_)(secret|token|passw(or)?d)_)`)
})

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
