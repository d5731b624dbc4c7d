package images

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestBaseImages compares the published images' definitions with their README.
func TestBaseImages(t *testing.T) {
	instruction := regexp.MustCompile(`(?m)^([A-Z]+) +(.*)$`)
	for _, name := range []string{"base", "dev"} {
		data, err := os.ReadFile(name + "/Dockerfile")
		if err != nil {
			t.Fatal(err)
		}
		user, count := "", 0
		for _, m := range instruction.FindAllStringSubmatch(string(data), -1) {
			count++
			switch m[1] {
			case "ENTRYPOINT", "VOLUME", "HEALTHCHECK", "ONBUILD", "ADD", "COPY":
				t.Errorf("%s has the instruction %s", name, m[0])
			case "USER":
				user = m[2]
			case "FROM":
				if m[2] != "${BASE}" {
					t.Errorf("%s is from %s, which no build can pin", name, m[2])
				}
			}
		}
		if count < 5 {
			t.Errorf("%s has %d instructions: the test reads them wrongly", name, count)
		}
		if user != "10001:10001" {
			t.Errorf("%s ends as user %q", name, user)
		}
		if !strings.Contains(string(data), "-perm /6000") {
			t.Errorf("%s keeps setuid files", name)
		}
	}
}
