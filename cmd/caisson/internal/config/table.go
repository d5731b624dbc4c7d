package config

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"

	"github.com/caisson-run/caisson/limits"
)

type field struct {
	name  string
	index []int
	typ   reflect.Type
	tag   reflect.StructTag
}

// fieldsOf returns the keys of a struct in order, also the keys of inlined structs. It
// leaves out profiles and workspaces.
func fieldsOf(t reflect.Type) []field {
	var out []field
	for f := range t.Fields() {
		name, options, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		switch {
		case options == "inline":
			for _, inner := range fieldsOf(f.Type) {
				inner.index = slices.Concat(f.Index, inner.index)
				out = append(out, inner)
			}
		case name != "" && name != "-" && f.Type != reflect.TypeFor[map[string]File]():
			out = append(out, field{name, f.Index, f.Type, f.Tag})
		}
	}
	return out
}

func (f field) tagWords(tag string) []string {
	if text := f.tag.Get(tag); text != "" {
		return strings.Fields(text)
	}
	return nil
}

// words returns the allowed words of a setting, or nil for any.
func (f field) words() []string { return slices.Concat(f.tagWords("enum"), f.tagWords("words")) }

// key is one key of a file. Its name is the complete key, such as limits.max_rounds,
// with NAME for names that users choose.
type key struct {
	field
	name string
}

// keysOf returns the keys of a file of type t. Those below a map have no index.
func keysOf(t reflect.Type) []key { return keysBelow("", t, []int{}) }

func keysBelow(above string, t reflect.Type, index []int) []key {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct {
		return nil
	}
	var out []key
	for _, f := range fieldsOf(t) {
		if index == nil {
			f.index = nil
		} else {
			f.index = slices.Concat(index, f.index)
		}
		name := joinKey(above, f.name)
		out = append(append(out, key{f, name}), keysBelow(name, f.typ, f.index)...)
		if f.typ.Kind() == reflect.Map {
			entry := field{"NAME", nil, f.typ.Elem(), entryTag(f.tag)}
			out = append(append(out, key{entry, name + ".NAME"}), keysBelow(name+".NAME", entry.typ, nil)...)
		}
	}
	return out
}

func entryTag(of reflect.StructTag) reflect.StructTag {
	return reflect.StructTag(fmt.Sprintf("doc:%q words:%q", of.Get("each"), of.Get("words")))
}

// valueIn returns the key's value in a struct of settings. It allocates the structs on
// the way.
func (k key) valueIn(v reflect.Value) reflect.Value {
	for _, i := range k.index {
		if v.Kind() == reflect.Pointer {
			if v.IsNil() {
				v.Set(reflect.New(v.Type().Elem()))
			}
			v = v.Elem()
		}
		v = v.Field(i)
	}
	return v
}

// Setting is a setting with a flag and an environment variable.
type Setting struct {
	// Flag is the flag's name, Letter its short form or "", and Key the key in files.
	Flag, Letter, Key string
	// List is set if the value is a list, separated by commas.
	List bool
	// Value is the kind of value in help, such as SIZE, or "" for a switch.
	Value string
	// Group is the group of the flag in help, Usage its text there, and Default the
	// built-in value.
	Group, Usage, Default string
	// Words are the allowed values, nil for any.
	Words []string

	key key
}

// Settings returns the settings with flags and variables. The caller must not change
// them.
func Settings() []Setting { return listSettings() }

// listSettings reads the table once.
var listSettings = sync.OnceValue(func() []Setting {
	defaults := map[string]string{}
	for _, v := range listValues(builtinFile(limits.DefaultResources())) {
		defaults[v.Key] = v.Text
	}
	var out []Setting
	for _, k := range keysOf(reflect.TypeFor[File]()) {
		if flag := k.tag.Get("flag"); flag != "" && k.index != nil { // not in a map's entry
			out = append(out, Setting{
				Flag: flag, Letter: k.tag.Get("letter"), List: k.typ.Kind() == reflect.Slice, Key: k.name, Value: k.tag.Get("value"), Group: k.tag.Get("group"), Usage: k.tag.Get("doc"),
				Default: cmp.Or(k.tag.Get("shown"), defaults[k.name]), Words: k.words(), key: k,
			})
		}
	}
	return out
})

// envPrefix begins the names of Caisson's environment variables.
const envPrefix = "CAISSON_"

// Env returns the setting's environment variable.
func (s Setting) Env() string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(s.Flag, "-", "_"))
}

// Set parses a value into f. Its error is an [Error] at where.
func (s Setting) Set(f *File, value, where string) error {
	if err := setText(s.key.valueIn(reflect.ValueOf(f).Elem()), value, s.key.tagWords("enum")); err != nil {
		return &Error{Where: where, Message: err.Error()}
	}
	return nil
}

func setText(dst reflect.Value, text string, enum []string) error {
	if dst.Kind() != reflect.Pointer {
		list, ok := reflect.TypeAssert[interface{ setText(string) error }](dst.Addr())
		if !ok {
			return fmt.Errorf("a %v can't be written as one value", dst.Type())
		}
		return list.setText(text)
	}
	v := reflect.New(dst.Type().Elem())
	switch to := v.Interface().(type) {
	case *string:
		*to = text
		if text == "" {
			return errors.New("the value is empty")
		}
		if enum != nil && !slices.Contains(enum, text) {
			return fmt.Errorf("%q is none of %s", text, strings.Join(enum, ", "))
		}
	case *bool:
		switch strings.ToLower(text) {
		case "true", "1", "yes", "on":
			*to = true
		case "false", "0", "no", "off":
		default:
			return fmt.Errorf("invalid switch %q: want true or false", text)
		}
	case yaml.NodeUnmarshaler:
		err := to.UnmarshalYAML(&ast.StringNode{Value: text})
		if e, ok := errors.AsType[*Error](err); ok {
			return errors.New(e.Message)
		}
		if err != nil {
			return err
		}
	}
	dst.Set(v)
	return nil
}

// Over returns f with everything that upper sets. It keeps profiles and workspaces.
func (f File) Over(upper File) File {
	overlayValue(reflect.ValueOf(&f).Elem(), reflect.ValueOf(upper))
	return f
}

// overlayValue sets what upper sets. A map keeps its other entries; a list is replaced.
func overlayValue(v, upper reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		for _, f := range fieldsOf(v.Type()) {
			overlayValue(v.FieldByIndex(f.index), upper.FieldByIndex(f.index))
		}
	case reflect.Map:
		if upper.Len() == 0 {
			return
		}
		merged := reflect.MakeMap(v.Type())
		for _, m := range []reflect.Value{v, upper} {
			for _, k := range m.MapKeys() {
				merged.SetMapIndex(k, m.MapIndex(k))
			}
		}
		v.Set(merged)
	default:
		if policy, ok := reflect.TypeAssert[*Policy](v); ok {
			u, _ := reflect.TypeAssert[*Policy](upper)
			upper = reflect.ValueOf(policy.overlaidBy(u))
		}
		if !upper.IsNil() {
			v.Set(upper)
		}
	}
}

// tightenValue makes the settings of v at least as strict as bound. It lowers larger or
// missing numbers, and replaces milder words and switches.
func tightenValue(v, bound reflect.Value) {
	for _, f := range fieldsOf(v.Type()) {
		have, want := v.FieldByIndex(f.index), bound.FieldByIndex(f.index)
		switch {
		case f.typ.Kind() == reflect.Struct:
			tightenValue(have, want)
		case want.IsNil():
		case have.IsNil(),
			have.Elem().CanInt() && want.Elem().Int() < have.Elem().Int(),
			!have.Elem().CanInt() && f.isMilder(have, want):
			have.Set(want)
		}
	}
}

func (f field) isMilder(v, than reflect.Value) bool {
	order := f.tagWords("tighten")
	return slices.Index(order, wordOf(v)) > slices.Index(order, wordOf(than))
}

func wordOf(v reflect.Value) string {
	if v.Elem().Kind() == reflect.Bool {
		return strconv.FormatBool(v.Elem().Bool())
	}
	return v.Elem().String()
}

// checkWords refuses words that are not in the tag enum. Its error is an [Error] at the
// key below prefix.
func checkWords(prefix string, v reflect.Value) error {
	for _, k := range keysOf(v.Type()) {
		if k.tagWords("enum") == nil || k.index == nil {
			continue
		}
		if word := v.FieldByIndex(k.index); !word.IsNil() {
			if err := checkWord(prefix+k.name, word.Elem().String(), k.tagWords("enum")); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkWord refuses a word that is not in words. Its error is an [Error] at where.
func checkWord(where, word string, words []string) error {
	if slices.Contains(words, word) {
		return nil
	}
	return &Error{Where: where, Message: fmt.Sprintf("%q is none of %s", word, strings.Join(words, ", "))}
}

// checkModes refuses unknown classes and modes in the struct v of a policy. Its error
// is an [Error] at the entry below prefix.
func checkModes(prefix string, v reflect.Value) error {
	for _, k := range fieldsOf(v.Type()) {
		modes, ok := reflect.TypeAssert[map[string]string](v.FieldByIndex(k.index))
		if !ok {
			continue
		}
		for _, name := range sortedKeys(modes) {
			if names := k.tagWords("names"); names != nil {
				if err := checkWord(prefix+k.name, name, names); err != nil {
					return err
				}
			}
			if err := checkWord(joinKey(prefix+k.name, name), modes[name], k.tagWords("words")); err != nil {
				return err
			}
		}
	}
	return nil
}
