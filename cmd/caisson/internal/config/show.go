package config

import (
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/caisson-run/caisson/tools/safeurl"
)

// Value is one setting that counts.
type Value struct {
	// Key is its place in a file: "limits.max_rounds".
	Key string `json:"key"`
	// Text is the value as it is written in a file, on one line. What looks like
	// a secret is not in it.
	Text string `json:"value"`
	// Origin says where it came from: "built-in", "user PATH", "profile NAME",
	// "workspace PATH",
	// "project PATH", "environment CAISSON_…", "flag --…", "requirements".
	Origin string `json:"origin"`
}

// Effective lists the settings that count, by their keys. The policy is as it is
// configured: what tightens it is listed after it, under its origin. hidden are
// values that must not be shown, by the names that stand for them.
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

// ProjectSetting is one setting of a workspace's own file.
type ProjectSetting struct {
	Key   string `json:"key"`
	Value string `json:"value"`
	// Counts is false where what counts otherwise is as strict; Effective is
	// that.
	Counts    bool   `json:"counts"`
	Effective string `json:"effective,omitempty"`
}

// ProjectSettings lists what the workspace's own file says, by its keys.
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

// listValues lists what a file sets. Profiles and workspaces are left out: they are no
// settings of their own.
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

// valueText is a value on one line, as YAML takes it.
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

// joinKey joins keys by dots; one that holds something else is quoted.
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

// minHiddenBytes keeps a secret that is an ordinary word from blanking text.
const minHiddenBytes = 6

// hideSecrets takes secrets out of a text: the values that it is given, and the
// credentials of addresses.
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

// HiddenValues are the values of the environment that must not be shown, by
// the names of their variables: those that sound like secrets, and named ones.
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

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
