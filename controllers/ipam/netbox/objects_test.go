package netbox

import (
	"encoding/json"
	"testing"
)

// TestUnreadableAddress reads what NetBox may have by mistake, between addresses.
func TestUnreadableAddress(t *testing.T) {
	const answer = `[{"id": 1, "address": "192.0.2.5/24"}, {"id": 2, "address": "none"}, {"id": 3},
		{"id": 4, "address": "2001:db8::5/64"}]`
	var records []ipAddress
	if err := json.Unmarshal([]byte(answer), &records); err != nil {
		t.Fatal(err)
	}
	got := ""
	for i := range records {
		got += records[i].addr().String() + " in " + records[i].subnet().String() + "; "
	}
	const want = "192.0.2.5 in 192.0.2.0/24; invalid IP in invalid Prefix; invalid IP in invalid Prefix; " +
		"2001:db8::5 in 2001:db8::/64; "
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
