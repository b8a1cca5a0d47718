package gobuild

import (
	"slices"
	"testing"
)

func TestParsePlatforms(t *testing.T) {
	got, err := ParsePlatforms("linux/amd64, windows/arm64")
	if want := []Platform{{"linux", "amd64"}, {"windows", "arm64"}}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, %v", got, err)
	}
	for _, wrong := range []string{"", "linux", "linux/", "linux/amd64,"} {
		if got, err := ParsePlatforms(wrong); err == nil {
			t.Errorf("%q is %v", wrong, got)
		}
	}
}
