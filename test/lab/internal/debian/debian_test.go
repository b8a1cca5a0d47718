package debian

import "testing"

func TestDebianLike(t *testing.T) {
	for release, want := range map[string]bool{
		"NAME=\"Debian GNU/Linux\"\nID=debian\n": true,
		"ID=ubuntu\nID_LIKE=debian\n":            true,
		"ID=pop\nID_LIKE=\"ubuntu debian\"\n":    true,
		"ID=fedora\nNAME=debian\n":               false,
		"ID=\"rhel\"\nID_LIKE=\"fedora\"\n":      false,
		"":                                       false,
	} {
		if got := debianLike(release); got != want {
			t.Errorf("debianLike(%q) = %v", release, got)
		}
	}
}
