package config

import (
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// filled sets everything below v: numbers to n, texts to "x", with one entry in maps
// and lists.
func filled(v reflect.Value, n int64) {
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		filled(v.Elem(), n)
	case reflect.Struct:
		for _, f := range fieldsOf(v.Type()) {
			filled(v.FieldByIndex(f.index), n)
		}
	case reflect.Map:
		e := reflect.New(v.Type().Elem()).Elem()
		filled(e, n)
		m := reflect.MakeMap(v.Type())
		m.SetMapIndex(reflect.ValueOf("name"), e)
		v.Set(m)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		filled(v.Index(0), n)
	case reflect.String:
		v.SetString("x")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Float64:
		v.SetFloat(float64(n))
	case reflect.Int64, reflect.Int:
		v.SetInt(n)
	case reflect.Uint8:
		v.SetUint('x')
	}
}

// TestOverTakesEveryKey: a key that Over forgets could not be set by any file.
func TestOverTakesEveryKey(t *testing.T) {
	var full File
	filled(reflect.ValueOf(&full).Elem(), 7)
	want := listValues(full)
	if len(want) < 60 {
		t.Fatalf("only %d keys are filled", len(want))
	}
	if diff := cmp.Diff(want, listValues(File{}.Over(full))); diff != "" {
		t.Errorf("(-set +taken):\n%s", diff)
	}
	if diff := cmp.Diff(want, listValues(full.Over(File{}))); diff != "" {
		t.Errorf("an empty layer changes something (-set +kept):\n%s", diff)
	}
}

// TestEveryCapLowers: a forgotten cap would not restrict anything.
func TestEveryCapLowers(t *testing.T) {
	var limit, high Limits
	var caps, wide Resources
	for v, n := range map[any]int64{&limit: 5, &high: 9, &caps: 5, &wide: 9} {
		filled(reflect.ValueOf(v).Elem(), n)
	}
	var none Limits
	lower(&none, limit)
	lower(&high, limit)
	lower(&wide, caps)
	for _, got := range []any{none, high} {
		if diff := cmp.Diff(limit, got); diff != "" {
			t.Errorf("limits (-cap +got):\n%s", diff)
		}
	}
	if diff := cmp.Diff(caps, wide); diff != "" {
		t.Errorf("resources (-cap +got):\n%s", diff)
	}
	var low Limits
	filled(reflect.ValueOf(&low).Elem(), 3)
	before := low
	lower(&low, limit)
	if diff := cmp.Diff(before, low); diff != "" {
		t.Errorf("a cap raises (-before +after):\n%s", diff)
	}
}

func lower[T any](v *T, limit T) {
	tightenValue(reflect.ValueOf(v).Elem(), reflect.ValueOf(limit))
}
