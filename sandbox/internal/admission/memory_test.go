package admission

import "testing"

func TestReadMemory(t *testing.T) {
	m, err := ReadMemory()
	must(t, err)
	if m.Total < 64<<20 || m.Available <= 0 || m.Available > m.Total {
		t.Errorf("memory %+v", m)
	}
	got, err := parseMemory("MemTotal:       24640000 kB\nMemFree: 1 kB\nMemAvailable:   20000000 kB\n")
	must(t, err)
	if got.Total != 24640000<<10 || got.Available != 20000000<<10 {
		t.Errorf("parsed %+v", got)
	}
	for _, text := range []string{"", "MemTotal: x kB\nMemAvailable: 1 kB\n", "MemTotal: 1 kB\n"} {
		if _, err := parseMemory(text); err == nil {
			t.Errorf("parsed %q", text)
		}
	}
}
